// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/completion_loop.h"

#include <sched.h>

#include <algorithm>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ipc/futex.h"
#include "base/ticks.h"
#include "base/timed_wait.h"
#include "grpc/support/time.h"
#include "rpc/grpc/grpc_time.h"

namespace tandem::rpc {
namespace {

constexpr int64_t kMostNs = 50'000;
constexpr int64_t kLeastNs = 1'000;
// A message of this size keeps processors busy for longer than it takes to wake a thread. The loop's own
// thread then does not spin for kBusyNs.
constexpr size_t kLongBytes = size_t{32} << 10;
constexpr int64_t kBusyNs = 300'000;
// The longest time that no thread polls the queue. Events that no call waits for (broken connections, pings)
// are delayed by at most this time.
constexpr absl::Duration kLeftAlone = absl::Milliseconds(50);
// How often InlinePoll checks whether its call has ended elsewhere (on a timer's thread).
constexpr absl::Duration kLook = absl::Milliseconds(20);

// Spinning on the only processor would keep all other threads from running.
int64_t MostNs() { return ipc::UsableProcessors() > 1 ? kMostNs : 0; }

}  // namespace

void CompletionLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void CompletionLoop::Stop() {
  if (stopped_) return;
  stopped_ = true;
  EndInlinePoll();
  {
    absl::MutexLock lock(&mutex_);
    const auto free = [this]()
                          ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return poller_ != Poller::kInlinePoller; };
    mutex_.Await(absl::Condition(&free));
  }
  queue_->Shutdown();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    // A completion queue must be empty when it is destroyed.
    Run();
  }
}

void CompletionLoop::Run() {
  SpinBudget budget{MostNs()};
  while (Next(absl::InfiniteFuture(), &budget) != Got::kShutDown) {
    // Not while a thread waits without polling.
    if (inline_poll_refused_.load(std::memory_order_relaxed) && pending_.load() == 0) YieldQueue();
  }
}

void CompletionLoop::NoteMessage(size_t bytes) {
  if (bytes >= kLongBytes) long_ns_.store(SteadyNanoseconds(), std::memory_order_relaxed);
}

CompletionLoop::Got CompletionLoop::Next(absl::Time deadline, SpinBudget* budget) {
  void* tag = nullptr;
  bool ok = false;
  const int64_t begin = SteadyNanoseconds();
  const bool busy = budget != &inline_budget_ && begin - long_ns_.load(std::memory_order_relaxed) < kBusyNs;
  const int64_t look_ns = busy ? 0 : budget->budget_ns;
  grpc::CompletionQueue::NextStatus status;
  for (int looks = 1;; ++looks) {
    status = queue_->AsyncNext(&tag, &ok, gpr_inf_past(GPR_CLOCK_MONOTONIC));
    if (status != grpc::CompletionQueue::TIMEOUT) break;
    if (SteadyNanoseconds() - begin >= look_ns) {
      status = queue_->AsyncNext(&tag, &ok, ToGrpcDeadline(deadline));
      const bool soon = SteadyNanoseconds() - begin < 2 * kMostNs;
      budget->budget_ns =
          std::min(MostNs(), soon ? 2 * budget->budget_ns + 1000 : std::max(kLeastNs, budget->budget_ns / 2));
      break;
    }
    if (looks % 8 == 0) sched_yield();  // the peer may be waiting for this processor
  }
  if (status == grpc::CompletionQueue::SHUTDOWN) return Got::kShutDown;
  if (status == grpc::CompletionQueue::TIMEOUT) return Got::kNothing;
  static_cast<CompletionTag*>(tag)->OnEvent(ok);
  return Got::kEvent;
}

void CompletionLoop::YieldQueue() {
  absl::MutexLock lock(&mutex_);
  inline_poll_refused_.store(false, std::memory_order_relaxed);
  if (stopping_) return;
  poller_ = Poller::kNone;
  // A thread that began a wait after this check has seen that the loop's own thread polls.
  loop_thread_next_ = pending_.load() > 0 && expected_.load() == 0;
  const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return poller_ == Poller::kNone && (loop_thread_next_ || stopping_);
  };
  const auto free = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return poller_ == Poller::kNone; };
  uint64_t helped;
  do {  // repeat while some thread has polled in the meantime
    helped = inline_polls_;
    if (AwaitFor(&mutex_, absl::Condition(&wanted), kLeftAlone)) break;
    mutex_.Await(absl::Condition(&free));
  } while (inline_polls_ != helped);
  loop_thread_next_ = false;
  poller_ = Poller::kLoopThread;
}

void CompletionLoop::Begin() {
  pending_.fetch_add(1);
  if (expected_.load() > 0) return;  // the thread that will call InlinePoll handles the event
  absl::MutexLock lock(&mutex_);
  if (poller_ != Poller::kLoopThread) loop_thread_next_ = true;
}

void CompletionLoop::InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline) {
  {
    absl::MutexLock lock(&mutex_);
    if (poller_ != Poller::kNone || loop_thread_next_ || stopping_) {
      if (poller_ == Poller::kLoopThread && deadline != absl::InfinitePast())
        inline_poll_refused_.store(true, std::memory_order_relaxed);
      expected_.fetch_sub(1);
      return;
    }
    poller_ = Poller::kInlinePoller;
    ++inline_polls_;
  }
  while (!over()) {
    const absl::Time now = MonotonicNow();
    // Stop() must not have to wait for the operation that this thread waits for.
    if (now >= deadline || inline_ended_.load() ||
        Next(std::min(deadline, now + kLook), &inline_budget_) == Got::kShutDown)
      break;
  }
  absl::MutexLock lock(&mutex_);
  poller_ = Poller::kNone;
  if (expected_.fetch_sub(1) == 1 && pending_.load() > 0) loop_thread_next_ = true;
}

void CompletionLoop::EndInlinePoll() {
  inline_ended_.store(true);
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
}

}  // namespace tandem::rpc
