#ifndef TANDEM_RPC_REMOTE_PEER_CONNECTIONS_H_
#define TANDEM_RPC_REMOTE_PEER_CONNECTIONS_H_

// A worker's connections to the others, by name.

#include <list>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/channel.h"
#include "rpc/connect.h"
#include "rpc/remote/directory.h"
#include "rpc/transport/timer_queue.h"

namespace tandem::rpc::remote {

// One life of another worker. Thread-safe.
class PeerConnection {
 public:
  PeerConnection(Member member, std::shared_ptr<Channel> channel)
      : member_(std::move(member)), channel_(std::move(channel)) {}

  const Member& member() const { return member_; }
  // Null once it is gone.
  std::shared_ptr<Channel> channel() const;
  // Why calls of it were stopped; OK while it lives.
  absl::Status gone() const;

  // A call begins: `stop` is requested should the peer go. The number is for End. 0: it is gone.
  uint64_t Begin(std::stop_source stop);
  void End(uint64_t number);
  // Stops all calls. Hands out the channel, whose destructor waits for them.
  std::shared_ptr<Channel> Go(absl::Status why);

 private:
  const Member member_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<Channel> channel_ ABSL_GUARDED_BY(mutex_);
  absl::Status gone_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, std::stop_source> calls_ ABSL_GUARDED_BY(mutex_);
};

// Thread-safe.
class PeerConnections {
 public:
  // `directory` and `timers` outlive it.
  PeerConnections(ConnectOptions options, Directory* directory, TimerQueue* timers);
  ~PeerConnections() { Close(); }

  using Go = absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<PeerConnection>>) &&>;
  // Runs `go` with the peer of this name: here and now if it is connected, else on another thread once it has
  // registered. Errors: DeadlineExceeded, naming it and who is there; Cancelled.
  void With(const std::string& name, absl::Time deadline, std::stop_token stop, Go go);
  // The connected peer, or null.
  std::shared_ptr<PeerConnection> Find(const std::string& name) const;

  // Fails what waits, closes all connections. Idempotent. Not on an RPC thread.
  void Close();

 private:
  struct Waiting {
    std::string name;
    Go go;
    absl::Time begin;
    std::optional<TimerQueue::Id> timer;
    std::optional<std::stop_callback<absl::AnyInvocable<void()>>> on_stop;
  };
  using WaitingList = std::list<std::shared_ptr<Waiting>>;

  void OnMembers(const Directory::Members& members);
  void Connect(const Member& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes it out and runs it, if nobody has.
  void Finish(const std::shared_ptr<Waiting>& waiting, absl::StatusOr<std::shared_ptr<PeerConnection>> peer);
  // On a thread of its own, which Close waits for.
  void Spawn(absl::AnyInvocable<void() &&> task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ConnectOptions options_;
  Directory* const directory_;
  TimerQueue* const timers_;
  uint64_t watch_ = 0;

  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  Directory::Members members_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::shared_ptr<PeerConnection>> peers_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, uint64_t> connecting_ ABSL_GUARDED_BY(mutex_);  // incarnations
  WaitingList waiting_ ABSL_GUARDED_BY(mutex_);
  int threads_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_PEER_CONNECTIONS_H_
