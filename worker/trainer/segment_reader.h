// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_TRAINER_SEGMENT_READER_H_
#define TANDEM_WORKER_TRAINER_SEGMENT_READER_H_

// Cuts an epoch's batches into segments, so that training comes to rest between two of them, for a
// checkpoint.

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/data/dataset.h"

namespace tandem::worker {

// Wraps a reader and reports the end of the epoch after a number of batches. SetEnd continues with the next
// batch. Next is called by one thread at a time; the other methods are thread-safe.
class SegmentReader : public BatchReader {
 public:
  // `reader` outlives this object. `begin` of its epoch's batches have been read already.
  SegmentReader(BatchReader* reader, uint64_t begin) : reader_(reader), batches_(begin), end_(begin) {}

  absl::StatusOr<bool> Next(Batch* batch) override ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t malformed_lines() const override { return reader_->malformed_lines(); }

  // Returns the number of batches read since the start of the epoch.
  uint64_t batches() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets the reader go on until `end` batches of the epoch are read.
  void SetEnd(uint64_t end) ABSL_LOCKS_EXCLUDED(mutex_);

  // Stops the reader: from now on Next blocks until Continue is called, unless the segment is at its end.
  // Returns the number of batches read, including the one that Next is reading.
  uint64_t Freeze() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends Freeze. The segment then ends after `end` batches, which must not be fewer than Freeze returned.
  void Continue(uint64_t end) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the end of the segment.
  uint64_t end() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  BatchReader* const reader_;
  mutable absl::Mutex mutex_;
  uint64_t batches_ ABSL_GUARDED_BY(mutex_);
  uint64_t end_ ABSL_GUARDED_BY(mutex_);
  bool frozen_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_SEGMENT_READER_H_
