#ifndef TANDEM_WORKER_DATA_PREFETCH_READER_H_
#define TANDEM_WORKER_DATA_PREFETCH_READER_H_

// Parses ahead of the consumer in a thread of its own.

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/data/dataset.h"

namespace tandem::worker {

// A BatchReader over another one: the same batches in the same order, then the same end or error, and that
// one again at every further call. One thread may call it. The destructor may be called at any time; it waits
// until the batch that is being parsed is done, and throws away what was read ahead.
class PrefetchReader : public BatchReader {
 public:
  // Up to `depth` (at least 1) batches wait, parsed, in the queue.
  PrefetchReader(std::unique_ptr<BatchReader> reader, size_t depth);
  ~PrefetchReader() override;

  // Blocks until a batch is parsed. Exchanges memory instead of copying: `batch` gets a parsed batch, and
  // what it held before is used again for a later one.
  absl::StatusOr<bool> Next(Batch* batch) override ABSL_LOCKS_EXCLUDED(mutex_);
  // Up to the batch returned last.
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

  const std::unique_ptr<BatchReader> reader_;  // used by the thread only
  const size_t depth_;
  absl::StatusOr<bool> last_ = true;  // what Next returned last
  uint64_t malformed_lines_ = 0;

  absl::Mutex mutex_;
  std::deque<Parsed> ready_ ABSL_GUARDED_BY(mutex_);
  std::vector<Batch> recycled_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_PREFETCH_READER_H_
