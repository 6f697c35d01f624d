// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_SHARED_FAILURE_STATE_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_SHARED_FAILURE_STATE_H_

// The first failure of a group, in shared memory, so that all ranks end with the same text.

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "collectives/backends/shm/segment.h"

namespace tandem::collectives::shm {

// One rank's view. Thread-safe; no call blocks on a peer for longer than 0.1 s.
class SharedFailureState {
 public:
  SharedFailureState(std::shared_ptr<Segment> segment, int rank)
      : segment_(std::move(segment)), rank_(rank) {}

  // Fails the group and wakes all waits, unless it has failed already. Returns the group's failure.
  absl::Status Report(const absl::Status& failure);
  // Ends the group with `reason` on this rank and "rank R aborted the group: ..." on the others, unless it
  // has failed already.
  void Abort(const absl::Status& reason);
  // Returns OK while the group has not failed; costs one load then.
  absl::Status status() { return word().load(std::memory_order_acquire) == 0 ? absl::OkStatus() : Failure(); }
  const std::atomic<uint32_t>& word() const { return segment_->header().failed; }

 private:
  absl::Status Failure();
  // Writes the record; returns false if another rank, or thread, was first.
  bool Write(const absl::Status& failure);

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the failure as this rank always reports it
};

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_SHARED_FAILURE_STATE_H_
