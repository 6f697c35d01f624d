// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_COMPLETION_LOOP_H_
#define TANDEM_RPC_GRPC_COMPLETION_LOOP_H_

// Polls a gRPC completion queue. Only used in rpc/grpc.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/ticks.h"
#include "grpcpp/completion_queue.h"

namespace tandem::rpc {

// The tag of an operation on a completion queue.
class CompletionTag {
 public:
  // Handles the end of the operation. Runs on the thread that polls the queue. May destroy the tag.
  virtual void OnEvent(bool ok) = 0;
  // Returns the pointer to pass to gRPC.
  void* tag() { return this; }

 protected:
  ~CompletionTag() = default;
};

// A tag that calls a method of its owner.
template <typename Owner>
class MemberTag final : public CompletionTag {
 public:
  MemberTag(Owner* owner, void (Owner::*method)(bool)) : owner_(owner), method_(method) {}
  void OnEvent(bool ok) override { (owner_->*method_)(ok); }

 private:
  Owner* const owner_;
  void (Owner::*const method_)(bool);
};

// A completion queue and the thread that polls it. At any time one thread polls: the loop's own thread, or a
// thread that polls while it waits for a call (InlinePoll). The polling thread handles the end of every
// operation on the queue. Comments call it "the loop's thread". All tags are CompletionTags.
//
// Waking a thread on an idle processor takes 20 us or more. A waiting thread therefore spins for a while
// before it sleeps, as long as that was successful recently (at most 50 us). The loop's own thread leaves the
// queue alone while other threads poll. It does not spin while long messages are transferred, because copying
// them and processing their rows need the processors.
class CompletionLoop {
 public:
  explicit CompletionLoop(std::unique_ptr<grpc::CompletionQueue> queue) : queue_(std::move(queue)) {}
  ~CompletionLoop() { Stop(); }

  // Starts the loop's thread. Called once, before the first operation can end.
  void Start();
  // Waits until all started operations have ended, and stops the loop. No operation may be started
  // afterwards. Idempotent. Must not be called on the loop's thread.
  void Stop();

  grpc::CompletionQueue* queue() { return queue_.get(); }

  // Mark the begin and the end of a wait for an event. The loop's thread polls if there are such waits and no
  // thread in InlinePoll.
  void Begin();
  void End() { pending_.fetch_sub(1); }

  // Notes that a message of `bytes` bytes was received or will be sent. Any thread.
  void NoteMessage(size_t bytes);

  // A thread that starts an operation and then waits for its end calls PrepareInlinePoll before the start and
  // InlinePoll after it. InlinePoll handles events until `over` returns true or `deadline` passes. It returns
  // at once if another thread is polling.
  void PrepareInlinePoll() { expected_.fetch_add(1); }
  void InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline);
  // Ends InlinePoll in all threads, for good: from now on only the loop's own thread polls.
  void EndInlinePoll();

 private:
  // The thread that polls the queue: none, the loop's own, or one in InlinePoll.
  enum class Poller { kNone, kLoopThread, kInlinePoller };
  // How long a thread spins before it sleeps.
  struct SpinBudget {
    int64_t budget_ns;
  };
  enum class Got { kEvent, kNothing, kShutDown };

  void Run();
  // Waits for one event and handles it.
  Got Next(absl::Time deadline, SpinBudget* budget);
  // Leaves the queue to threads in InlinePoll while there are any, then polls again.
  void YieldQueue();

  const std::unique_ptr<grpc::CompletionQueue> queue_;
  std::thread thread_;
  bool stopped_ = false;

  std::atomic<int> pending_{0};  // number of waits between Begin and End
  // Number of threads between PrepareInlinePoll and the end of InlinePoll. Decreased under the lock only.
  std::atomic<int> expected_{0};
  // A thread could not poll because the loop's own thread did.
  std::atomic<bool> inline_poll_refused_{false};
  std::atomic<bool> inline_ended_{false};
  // The time of the last long message, in SteadyNanoseconds().
  std::atomic<int64_t> long_ns_{0};
  absl::Mutex mutex_;
  Poller poller_ ABSL_GUARDED_BY(mutex_) = Poller::kLoopThread;
  // The loop's own thread must poll next.
  bool loop_thread_next_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t inline_polls_ ABSL_GUARDED_BY(mutex_) = 0;  // how often a thread began to poll in InlinePoll
  // The spin budget of the thread that polls in InlinePoll.
  SpinBudget inline_budget_ = {0};
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_COMPLETION_LOOP_H_
