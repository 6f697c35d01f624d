#ifndef TANDEM_RPC_GRPC_COMPLETION_LOOP_H_
#define TANDEM_RPC_GRPC_COMPLETION_LOOP_H_

// For rpc/grpc only.

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

// What a completion queue hands back when an operation is over.
class CompletionTag {
 public:
  // On the thread whose turn it is. May destroy the tag.
  virtual void OnEvent(bool ok) = 0;
  // What to give to gRPC.
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

// A completion queue, and the one thread at a time that waits on it: the loop's own, or one that helps while
// it waits for a call. Everything whose operations are on the queue is told of their end by that thread; what
// such objects do is "on the loop's thread". All tags are CompletionTags.
//
// A thread that is woken on an idle processor comes 20 us late or more. So a waiting thread looks for events
// for a while before it sleeps, as long as that has paid of late (at most 50 us); and the loop's thread
// leaves the queue alone while others help. It does not look while long messages come and go, whose copies
// and rows want the processors.
class CompletionLoop {
 public:
  explicit CompletionLoop(std::unique_ptr<grpc::CompletionQueue> queue) : queue_(std::move(queue)) {}
  ~CompletionLoop() { Stop(); }

  // Once, before the first operation can end.
  void Start();
  // Waits until the operations under way are over; none may be begun any more. Idempotent; not on the loop's
  // thread.
  void Stop();

  grpc::CompletionQueue* queue() { return queue_.get(); }

  // Between the two, somebody waits for an event.
  void Begin();
  void End() { pending_.fetch_sub(1); }

  // A message of so many bytes has come, or is to be sent. Any thread.
  void NoteMessage(size_t bytes);

  // For threads that Begin something and then wait for its end: PrepareInlinePoll before it begins, Help after. Help
  // hands out events until `over` says so, or `deadline`; it returns at once when it is another thread's
  // turn.
  void PrepareInlinePoll() { expected_.fetch_add(1); }
  void InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline);
  // From now on the loop's thread does all.
  void EndHelp();

 private:
  enum class Turn { kNobody, kThread, kHelper };
  // How long one thread looks before it sleeps.
  struct SpinBudget {
    int64_t budget_ns;
  };
  enum class Got { kEvent, kNothing, kShutDown };

  void Run();
  // Hands out one event.
  Got Next(absl::Time deadline, SpinBudget* patience);
  // Lets others have the queue while they want it. Takes the turn again.
  void StepBack();

  const std::unique_ptr<grpc::CompletionQueue> queue_;
  std::thread thread_;
  bool stopped_ = false;

  std::atomic<int> pending_{0};   // between Begin and End
  std::atomic<int> expected_{0};  // threads between PrepareInlinePoll and the end of Help; falls under the lock only
  std::atomic<bool> missed_{false};  // one could not help, since it was the thread's turn
  std::atomic<bool> help_ended_{false};
  std::atomic<int64_t> long_ns_{0};  // when the last long message was noted, SteadyNanoseconds()
  absl::Mutex mutex_;
  Turn turn_ ABSL_GUARDED_BY(mutex_) = Turn::kThread;
  bool attend_ ABSL_GUARDED_BY(mutex_) = false;  // the thread is to have the next turn
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t helped_ ABSL_GUARDED_BY(mutex_) = 0;  // how often
  SpinBudget helper_ = {0};                        // of whoever has the turn as a helper
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_COMPLETION_LOOP_H_
