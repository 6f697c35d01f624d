#ifndef TANDEM_PS_SERVER_TASK_EXECUTOR_H_
#define TANDEM_PS_SERVER_TASK_EXECUTOR_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::ps {

// Threads that run tasks first in, first out. Thread-safe. The destructor stops it.
class TaskExecutor {
 public:
  explicit TaskExecutor(int threads);
  ~TaskExecutor();

  // Queues `task`; never blocks. False, with the task not taken, after Stop().
  bool Post(std::function<void()> task);
  // Runs what is queued to its end and joins the threads. Idempotent; not from a task.
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
