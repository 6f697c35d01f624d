// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_TASK_EXECUTOR_H_
#define TANDEM_PS_SERVER_TASK_EXECUTOR_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::ps {

// Threads that run tasks in the order in which they were posted. Thread-safe. The destructor calls Stop.
class TaskExecutor {
 public:
  explicit TaskExecutor(int threads);
  ~TaskExecutor();

  // Queues `task`. Never blocks on tasks. Returns false, without queueing it, after Stop.
  bool Post(std::function<void()> task);
  // Blocks until all queued tasks have run, and joins the threads. Idempotent. Must not be called from a
  // task.
  void Stop();

 private:
  void Run();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !tasks_.empty(); }

  absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TASK_EXECUTOR_H_
