// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_TRAINER_BOUNDARY_AGREEMENT_H_
#define TANDEM_WORKER_TRAINER_BOUNDARY_AGREEMENT_H_

// Lets the workers of a job agree on the step after which all of them stop training, to save a checkpoint or
// because one of them was asked to stop.

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/process_group.h"
#include "worker/trainer/segment_reader.h"

namespace tandem::worker {

// All ranks make the same calls at the same steps. Used by the computing thread of a worker.
//
// Workers compare notes in an all-reduce of a few numbers, about four times a second. Rank 0 chooses the
// interval in steps, so that no rank needs to look at a clock.
class BoundaryAgreement {
 public:
  // `stop` becomes true when this worker is asked to stop; nullptr: it never is. It must be nullptr on all
  // ranks or on none. `every` is the time between checkpoints by rank 0's clock; zero: none are due by time.
  BoundaryAgreement(collectives::ProcessGroup* group, const std::atomic<bool>* stop, absl::Duration every,
                    Clock* clock);

  // Called after each step of a segment that `reader` delivers. If the workers agree to end the segment
  // early, moves its end to the earliest batch at which all of them can stop. Blocks for one all-reduce when
  // the workers compare notes, and returns its error.
  absl::Status AfterStep(SegmentReader* reader);
  // Returns whether a worker was asked to stop, the same on all ranks. Blocks for an all-reduce, unless
  // AfterStep has found it out already. To be called between segments.
  absl::StatusOr<bool> MustStop();
  // Returns whether AfterStep or MustStop has found that a worker was asked to stop, the same on all ranks.
  bool stop_noted() const { return must_stop_; }
  // Returns whether the workers have agreed that a checkpoint is due by time, and none was attempted since.
  // The same on all ranks.
  bool save_due() const { return save_due_; }
  // Called before a new segment.
  void BeginSegment() { agreed_ = false; }
  // Called when a checkpoint was saved or could not be saved: the next one by time is due `every` from now. A
  // save that failed is not repeated earlier, since it stops all workers.
  void NoteCheckpoint();

 private:
  struct Notes;
  absl::Status Exchange(Notes* notes);

  collectives::ProcessGroup* const group_;
  const std::atomic<bool>* const stop_;
  const absl::Duration every_;
  Clock* const clock_;
  bool agreed_ = false;     // the end of this segment is fixed
  bool must_stop_ = false;  // a worker was asked to stop
  bool save_due_ = false;
  uint64_t interval_ = 1;  // steps from one exchange to the next
  uint64_t steps_ = 0;     // since the last exchange
  absl::Time last_exchange_;
  absl::Time last_checkpoint_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_BOUNDARY_AGREEMENT_H_
