// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_EXCHANGE_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_EXCHANGE_H_

// Exchange runs the collectives of one rank: it decides when memory may be read or overwritten.
//
// Every collective begins with a post, which tells each rank that all others have come and call the same
// operation. A small collective carries its bytes in the post and needs one synchronisation in all. Larger
// ones go through the stages, in blocks:
//
//   one phase   iteration k: pack block k; unpack block k - 1
//   two phases  (all_reduce, reduce) iteration k: read the results of block k - 2; give the others what they
//               reduce of block k; reduce this rank's slice of block k - 1. This is a reduce-scatter and an
//               all-gather whose blocks overlap (Rabenseifner 2004): each byte of input is copied by at most
//               one core, and a rank waits for what the others did an iteration ago.
//
// Each rank counts its steps, 2 or 3 in an iteration, in one number that never decreases
// (RankArea::progress). Both "rank s has packed block k" and "rank s no longer reads block k" mean "the
// progress of rank s has reached x". All ranks reserve the same regions of their stages, so that a block lies
// at the same offset in each.

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "collectives/backends/shm/copy.h"
#include "collectives/backends/shm/parts.h"
#include "collectives/backends/shm/segment.h"
#include "collectives/backends/shm/shared_failure_state.h"
#include "collectives/backends/shm/wait.h"

namespace tandem::collectives::shm {

// Used by one thread at a time.
class Exchange {
 public:
  // `failures` must outlive this object.
  Exchange(std::shared_ptr<Segment> segment, SharedFailureState* failures, int rank, std::string group);

  // Runs a collective; see Backend::Run.
  absl::Status Run(const Operation& operation);

 private:
  // State of the running operation.
  struct Running {
    Running(const Operation& operation, const SpinPolicy& spin_policy, const SharedFailureState& failures,
            uint64_t first_step)
        : operation(operation),
          waiter(spin_policy, failures.word(), operation.timeout),
          first_step(first_step) {}
    const Operation& operation;
    Waiter waiter;
    const uint64_t first_step;  // progress of all ranks when the operation began
    uint64_t word = 0;          // of every rank's post
    double factors[kMaxRanks];  // of kPremulSum, else not set
  };

  absl::Status RunSmall(Running& run, const Plan& plan);
  absl::Status RunOnePhase(Running& run, Plan plan);
  absl::Status RunTwoPhases(Running& run);

  // Publishes this rank's post, together with what it packed before, and waits for the posts of all others.
  void Announce(Running& run);
  // Waits until every rank has posted. A rank that has posted has made `step` steps.
  absl::Status AwaitPosts(Running& run, uint64_t step);
  // Compares the counts of all pairs, for uneven operations whose pairs agree among themselves. Sets the
  // largest part in bytes.
  absl::Status ComparePairs(Running& run, size_t* largest_part);
  // Wait until `rank`, or all ranks other than this one, have made `step` steps.
  absl::Status AwaitStep(Running& run, int rank, uint64_t step);
  absl::Status AwaitStepOfAll(Running& run, uint64_t step);
  void Advance(uint64_t step);
  // Reserves a region of every rank's stage, whose readers will be done with it at step `free_at`.
  absl::Status Reserve(Running& run, size_t bytes, uint64_t free_at, size_t* offset);

  PartLocation place(const Running& run) const;
  void PublishWord(std::atomic<uint64_t>& word, uint64_t value);
  absl::Status Disagree(const Running& run, int rank);
  // Returns the error for a wait for `rank` that ended with `outcome`.
  absl::Status Ended(const Running& run, Outcome outcome, int rank, uint64_t step);

  const std::shared_ptr<Segment> segment_;
  SharedFailureState* const failures_;
  const int rank_;
  const int world_size_;
  const std::string group_;
  const SpinPolicy spin_policy_;

  uint64_t sequence_ = 0;          // of this rank's collectives; the first is 1
  uint64_t step_ = 0;              // progress of every rank before the running operation
  uint64_t seen_[kMaxRanks] = {};  // the others' progress, as last read
  int part_ = kStageParts - 1;     // part of the stage that holds the last block
  size_t part_used_;               // bytes used of that part
  uint64_t part_free_at_[kStageParts] = {};
  LaneWriter writer_;  // of this rank's stage
};

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_EXCHANGE_H_
