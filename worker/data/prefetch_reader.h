// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_DATA_PREFETCH_READER_H_
#define TANDEM_WORKER_DATA_PREFETCH_READER_H_

// Parses batches ahead of the consumer on its own thread.

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/data/dataset.h"

namespace tandem::worker {

// Wraps another BatchReader and returns the same batches in the same order, then its end or error, which
// every later call repeats. Calls must come from one thread. The destructor may be called at any time: it
// waits until the batch that is being parsed is done and discards the batches read ahead.
class PrefetchReader : public BatchReader {
 public:
  // The queue contains at most `depth` parsed batches. A `depth` of 0 counts as 1.
  PrefetchReader(std::unique_ptr<BatchReader> reader, size_t depth);
  ~PrefetchReader() override;

  // Blocks until a batch is parsed. Swaps memory instead of copying: `batch` receives a parsed batch, and its
  // old memory is reused for a later one.
  absl::StatusOr<bool> Next(Batch* batch) override ABSL_LOCKS_EXCLUDED(mutex_);
  // Malformed lines up to the batch that Next returned last.
  uint64_t malformed_lines() const override { return malformed_lines_; }

 private:
  struct Parsed {
    absl::StatusOr<bool> result = false;
    uint64_t malformed_lines = 0;
    Batch batch;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  bool MayParse() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || ready_.size() < depth_; }
  bool HasParsed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !ready_.empty(); }

  const std::unique_ptr<BatchReader> reader_;  // used by thread_ only
  const size_t depth_;
  absl::StatusOr<bool> last_ = true;  // result of the last Next
  uint64_t malformed_lines_ = 0;

  absl::Mutex mutex_;
  std::deque<Parsed> ready_ ABSL_GUARDED_BY(mutex_);
  std::vector<Batch> recycled_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // declared last because it uses all members above
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_PREFETCH_READER_H_
