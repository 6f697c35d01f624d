#ifndef TANDEM_PS_SERVER_HELPER_THREADS_H_
#define TANDEM_PS_SERVER_HELPER_THREADS_H_

#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "ps/storage/table_storage.h"

namespace tandem::ps {

// Threads that do nothing but take part in large updates: one worker's pushes are applied one after the
// other, so that without them they would never use more than one processor. Calls that share at the same time
// are helped in order of arrival. Thread-safe.
class HelperThreads : public Helpers {
 public:
  explicit HelperThreads(int threads);
  // No call of Share is under way any more.
  ~HelperThreads() override;

  void Share(absl::FunctionRef<void()> work) override;

 private:
  // A call of Share, in its own frame.
  struct Job {
    absl::FunctionRef<void()> work;
    int inside = 0;  // helpers
    bool IsEmpty() const { return inside == 0; }
  };
  void Run();
  void CloseLocked(const Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !open_.empty(); }

  absl::Mutex mutex_;
  std::vector<Job*> open_ ABSL_GUARDED_BY(mutex_);  // that a helper may still begin with; few
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_HELPER_THREADS_H_
