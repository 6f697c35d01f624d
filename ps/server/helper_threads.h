// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_HELPER_THREADS_H_
#define TANDEM_PS_SERVER_HELPER_THREADS_H_

#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "ps/storage/table_storage.h"

namespace tandem::ps {

// Threads that only take part in large updates. The pushes of one worker are applied one after the other, so
// that without helpers they would never use more than one processor. Concurrent calls of Share are helped in
// order of arrival. Thread-safe.
class HelperThreads : public Helpers {
 public:
  explicit HelperThreads(int threads);
  // Joins the threads. No call of Share may be under way.
  ~HelperThreads() override;

  // Calls `work` on this thread and on idle helpers at the same time. Blocks until all of them have returned.
  void Share(absl::FunctionRef<void()> work) override;

 private:
  // One call of Share; lies on that call's stack.
  struct Job {
    absl::FunctionRef<void()> work;
    int inside = 0;  // number of helpers that run `work`
    bool IsEmpty() const { return inside == 0; }
  };
  void Run();
  void CloseLocked(const Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !open_.empty(); }

  absl::Mutex mutex_;
  std::vector<Job*> open_ ABSL_GUARDED_BY(mutex_);  // helpers may still join these; only a few
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_HELPER_THREADS_H_
