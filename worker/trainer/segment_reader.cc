// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/segment_reader.h"

namespace tandem::worker {

absl::StatusOr<bool> SegmentReader::Next(Batch* batch) {
  {
    absl::MutexLock lock(&mutex_);
    auto may_read = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !frozen_ || batches_ == end_; };
    mutex_.Await(absl::Condition(&may_read));  // between Freeze and Continue, which do not wait for a reader
    if (batches_ == end_) {
      batch->Clear();
      return false;
    }
    ++batches_;
  }
  absl::StatusOr<bool> more = reader_->Next(batch);
  if (!more.ok() || !*more) {
    absl::MutexLock lock(&mutex_);
    --batches_;
  }
  return more;
}

uint64_t SegmentReader::batches() const {
  absl::MutexLock lock(&mutex_);
  return batches_;
}

uint64_t SegmentReader::end() const {
  absl::MutexLock lock(&mutex_);
  return end_;
}

void SegmentReader::SetEnd(uint64_t end) {
  absl::MutexLock lock(&mutex_);
  end_ = end;
}

uint64_t SegmentReader::Freeze() {
  absl::MutexLock lock(&mutex_);
  frozen_ = true;
  return batches_;
}

void SegmentReader::Continue(uint64_t end) {
  absl::MutexLock lock(&mutex_);
  frozen_ = false;
  end_ = end;
}

}  // namespace tandem::worker
