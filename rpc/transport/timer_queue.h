// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_TRANSPORT_TIMER_QUEUE_H_
#define TANDEM_RPC_TRANSPORT_TIMER_QUEUE_H_

#include <cstdint>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem::rpc {

// Runs functions at given times on one thread, which starts with the first function. Thread-safe.
class TimerQueue {
 public:
  using Task = absl::AnyInvocable<void() &&>;
  using Id = std::pair<absl::Time, uint64_t>;

  TimerQueue() = default;
  // Calls Stop.
  ~TimerQueue();

  // Runs `task` at `when`, a time of MonotonicNow(), or soon after, or immediately once RunAllNow() has been
  // called. Never blocks on a task.
  Id Schedule(absl::Time when, Task task);
  // Runs `task` as soon as the thread is free, after the tasks passed to earlier RunSoon() calls.
  void RunSoon(Task task);
  // Drops the task if it has not begun. Does not wait for a task that has begun.
  void Cancel(const Id& id);
  // Makes every scheduled task due now, including those scheduled from now on.
  void RunAllNow();
  // Waits for the running task, then drops all waiting tasks and all that are scheduled later. Idempotent.
  // Must not be called on the queue's own thread.
  void Stop();

 private:
  void Run();
  Id Add(absl::Time when, Task&& task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::map<Id, Task> tasks_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  bool hurry_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_TRANSPORT_TIMER_QUEUE_H_
