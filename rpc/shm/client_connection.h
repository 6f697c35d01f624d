#ifndef TANDEM_RPC_SHM_CLIENT_CONNECTION_H_
#define TANDEM_RPC_SHM_CLIENT_CONNECTION_H_

// The client's end of one connection: its calls, and who receives for them.
//
// One thread at a time receives: the connection's own, or a caller that waits (Help), which spares a
// hand-over between threads. The own thread sleeps at the socket, a helper at the futex, so that an answer
// wakes the one it is for. Deadlines are kept by whoever receives.

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/ipc/descriptor.h"
#include "rpc/shm/link.h"
#include "rpc/shm/spinner.h"
#include "rpc/transport/retrying_channel.h"

namespace tandem::rpc::shm {

// Thread-safe. Close() it before the last reference is dropped, and not on one of its RPC threads.
class ClientConnection : public std::enable_shared_from_this<ClientConnection> {
 public:
  // Takes over a link that Dial has made. FailedPrecondition when no descriptor is left.
  static absl::StatusOr<std::shared_ptr<ClientConnection>> Start(std::shared_ptr<Link> link);
  ~ClientConnection();

  std::shared_ptr<Attempt> NewAttempt(const std::string& method, const Bytes& request, absl::Time deadline);
  std::shared_ptr<char> RequestMemory(size_t bytes) { return link_->BorrowMemory(bytes); }
  // As Channel::Help.
  void InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline);
  bool broken() const { return link_->broken(); }
  absl::Status failure() const { return link_->failure(); }
  Link& link() const { return *link_; }

  // Ends all calls with Cancelled, and the thread.
  void Close();

 private:
  class ShmAttempt;
  explicit ClientConnection(std::shared_ptr<Link> link, int event) : link_(std::move(link)), event_(event) {}

  void Run();
  // Delivers what has come and sends what has found room; whether there was anything. By whoever receives.
  bool Pump();
  // Whether nothing came after all: then whoever receives may sleep, in that way.
  bool MayFallAsleep(Asleep how);
  bool TryReceive() { return !receiving_.exchange(true, std::memory_order_acquire); }
  void StopReceiving() { receiving_.store(false, std::memory_order_release); }
  // Nobody waits for the call any more: says so to the server.
  void Expire(uint64_t call);
  void Expire();
  void FailAll(const absl::Status& why);
  std::shared_ptr<ShmAttempt> Take(uint64_t id);
  void Begin(std::shared_ptr<ShmAttempt> attempt);
  void Poke();

  const std::shared_ptr<Link> link_;
  const ipc::Descriptor event_;  // wakes the thread
  std::atomic<bool> receiving_{false};
  Spinner help_spinner_;  // of helpers: by whoever receives
  std::atomic<bool> stop_{false};
  std::atomic<bool> peer_ended_{false};
  std::atomic<int64_t> next_look_ns_;  // since the Unix epoch: when somebody must look for passed deadlines

  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<ShmAttempt>> calls_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> outstanding_{0};
  std::atomic<uint64_t> next_id_{1};
  std::thread thread_;
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_CLIENT_CONNECTION_H_
