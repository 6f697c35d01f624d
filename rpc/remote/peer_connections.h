// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_PEER_CONNECTIONS_H_
#define TANDEM_RPC_REMOTE_PEER_CONNECTIONS_H_

// The connections of a worker to other workers, by name.

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

// A connection to one incarnation (directory.h) of another worker. It ends when Go is called, because the
// worker is gone or this worker shuts down. Thread-safe.
class PeerConnection {
 public:
  PeerConnection(Member member, std::shared_ptr<Channel> channel)
      : member_(std::move(member)), channel_(std::move(channel)) {}

  const Member& member() const { return member_; }
  // Returns null after Go.
  std::shared_ptr<Channel> channel() const;
  // Returns the reason given to Go; OK before.
  absl::Status gone() const;

  // Registers a call: Go requests a stop of `stop`. Returns a number for End, or 0 if Go was called already;
  // it then leaves `stop` alone.
  uint64_t Begin(std::stop_source stop);
  // Removes a call that Begin registered. No effect for other numbers, and after Go.
  void End(uint64_t number);
  // Requests a stop of all calls and ends the connection with the reason `why`, which must not be OK. The
  // stop callbacks run on this thread. Returns the channel, or null if it was called before; the first reason
  // stays. The caller's release of the channel may wait for the calls on it.
  std::shared_ptr<Channel> Go(absl::Status why);

 private:
  const Member member_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<Channel> channel_ ABSL_GUARDED_BY(mutex_);
  absl::Status gone_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, std::stop_source> calls_ ABSL_GUARDED_BY(mutex_);
};

// The connections of a worker. It connects to a worker when the first call needs it, and drops the connection
// when the directory reports that the worker has left. Thread-safe.
class PeerConnections {
 public:
  // `directory` and `timers` must outlive it. Before it is destroyed, `timers` must have been stopped: a task
  // that has begun may still use it.
  PeerConnections(ConnectOptions options, Directory* directory, TimerQueue* timers);
  ~PeerConnections() { Close(); }

  using Go = absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<PeerConnection>>) &&>;
  // Runs `go` exactly once, with the connection to `name` or with an error. Does not block. If the connection
  // exists, or Close was called, `go` runs in this thread. Otherwise it runs as soon as the worker has
  // registered and the connection is made, or one of the errors occurs. It then runs in a thread of this
  // object, in the timers' thread, or in the thread that requests the stop or calls Close. Errors:
  //
  // - DeadlineExceeded: there was no connection by `deadline`; the message says whether the worker has
  //   registered, and lists the registered workers if not
  // - Cancelled: `stop` was requested, or Close was called
  // - the error of the attempt to connect
  void With(const std::string& name, absl::Time deadline, std::stop_token stop, Go go);
  // Returns the connection to `name`, or null if there is none yet or no more. Does not block.
  std::shared_ptr<PeerConnection> Find(const std::string& name) const;

  // Fails the waiting calls of With with Cancelled, stops the calls of all connections and closes them.
  // Blocks until these calls have ended and no attempt to connect is under way (ConnectOptions::offer_timeout
  // bounds each attempt). A second call returns at once. Must not be called on an RPC thread, by a watcher of
  // the directory or by a `go`.
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
  // Tells callbacks of stop tokens, which may run at any time, whether the object still exists.
  struct Existence {
    absl::Mutex mutex;
    PeerConnections* object ABSL_GUARDED_BY(mutex) = nullptr;  // nullptr after Close
  };

  void OnMembers(const Directory::Members& members);
  void Connect(const Member& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the entry. Returns false if another thread has done so.
  bool Take(const std::shared_ptr<Waiting>& waiting);
  // Removes the entry and runs its callback, unless another thread has done so.
  void Finish(const std::shared_ptr<Waiting>& waiting, absl::StatusOr<std::shared_ptr<PeerConnection>> peer);
  // Runs `task` in a new thread, for which Close waits.
  void Spawn(absl::AnyInvocable<void() &&> task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ConnectOptions options_;
  Directory* const directory_;
  TimerQueue* const timers_;
  uint64_t watch_ = 0;
  const std::shared_ptr<Existence> existence_ = std::make_shared<Existence>();

  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  Directory::Members members_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::shared_ptr<PeerConnection>> peers_ ABSL_GUARDED_BY(mutex_);
  // The incarnations to which connections are being made.
  absl::flat_hash_map<std::string, uint64_t> connecting_ ABSL_GUARDED_BY(mutex_);
  WaitingList waiting_ ABSL_GUARDED_BY(mutex_);
  int threads_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_PEER_CONNECTIONS_H_
