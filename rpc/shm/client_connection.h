// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SHM_CLIENT_CONNECTION_H_
#define TANDEM_RPC_SHM_CLIENT_CONNECTION_H_

// The client end of one connection: its calls, and the receiving of their responses.
//
// At any time one thread receives: the connection's own thread, or a caller that polls while it waits
// (InlinePoll), which saves a hand-over between threads. The connection's own thread sleeps on the socket and
// a polling caller on the futex, so that a response wakes the thread that waits for it. The receiving thread
// also checks the deadlines.

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

// The client end of one connection. Thread-safe. Close() must be called before the last reference is dropped,
// and not on one of the connection's RPC threads.
class ClientConnection : public std::enable_shared_from_this<ClientConnection> {
 public:
  // Takes over a link that Dial has made. FailedPrecondition if the process has no file descriptor left.
  static absl::StatusOr<std::shared_ptr<ClientConnection>> Start(std::shared_ptr<Link> link);
  ~ClientConnection();

  std::shared_ptr<Attempt> NewAttempt(const std::string& method, const Bytes& request, absl::Time deadline);
  std::shared_ptr<char> RequestMemory(size_t bytes) { return link_->BorrowMemory(bytes); }
  // Implements Channel::InlinePoll.
  void InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline);
  bool broken() const { return link_->broken(); }
  absl::Status failure() const { return link_->failure(); }
  Link& link() const { return *link_; }

  // Ends all calls with Cancelled and stops the thread.
  void Close();

 private:
  class ShmAttempt;
  explicit ClientConnection(std::shared_ptr<Link> link, int event) : link_(std::move(link)), event_(event) {}

  // The loop of the connection's own thread.
  void Run();
  // Delivers what was received and sends what now fits. Returns true if there was anything. Called by the
  // receiving thread.
  bool Pump();
  // Announces to the peer that the receiving thread will sleep in way `how`. Returns false, and withdraws the
  // announcement, if something has arrived.
  bool MayFallAsleep(SleepState how);
  bool TryReceive() { return !receiving_.exchange(true, std::memory_order_acquire); }
  void StopReceiving() { receiving_.store(false, std::memory_order_release); }
  // Tells the server that the client does not wait for the call any more.
  void SendCancel(uint64_t call);
  // Ends all calls whose deadline has passed.
  void ExpireCalls();
  // Ends all calls with `why`.
  void FailAll(const absl::Status& why);
  // Removes the call and returns it, or nullptr if it is over.
  std::shared_ptr<ShmAttempt> Take(uint64_t id);
  // Registers the call and sends its request.
  void Begin(std::shared_ptr<ShmAttempt> attempt);
  // Wakes the connection's own thread.
  void Poke();

  const std::shared_ptr<Link> link_;
  const ipc::Descriptor event_;  // wakes the connection's own thread
  std::atomic<bool> receiving_{false};
  Spinner inline_spinner_;  // shared by the callers that poll; only the receiving thread uses it
  std::atomic<bool> stop_{false};
  std::atomic<bool> peer_ended_{false};
  // When the next deadline must be checked, in ns of CLOCK_MONOTONIC.
  std::atomic<int64_t> next_look_ns_;

  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<ShmAttempt>> calls_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> outstanding_{0};
  std::atomic<uint64_t> next_id_{1};
  std::thread thread_;
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_CLIENT_CONNECTION_H_
