#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_EXCHANGE_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_EXCHANGE_H_

// The collectives of one rank: when something may be read or overwritten.
//
// Every collective begins with a post by which each rank sees that all others are there and do the same. A
// small one carries its bytes in the post: one synchronisation in all. Larger ones go through the stages, in
// blocks:
//
//   one phase   iteration k: pack block k; unpack block k - 1
//   two phases  (all_reduce, reduce) iteration k: take the results of block k - 2; give the others what they
//               reduce of block k; reduce this rank's slice of block k - 1. As one pass of a reduce-scatter
//               and an all-gather whose blocks overlap (Rabenseifner 2004), so that each byte of input is
//               copied by at most one core, and a rank waits for what the others did an iteration ago.
//
// Each rank counts its steps (RankArea::progress), 2 or 3 in an iteration, in one number that never goes
// back: "rank s has packed block k" and "rank s no longer reads block k" are both "its progress has reached
// x". All ranks reserve the same pieces of their stages, so that a block lies at the same place in each.

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

// One thread at a time.
class Exchange {
 public:
  // `board` must outlive it.
  Exchange(std::shared_ptr<Segment> segment, SharedFailureState* failures, int rank, std::string group);

  // Runs a collective; see Backend::Run.
  absl::Status Run(const Operation& operation);

 private:
  // Of the running operation.
  struct Running {
    Running(const Operation& operation, const SpinPolicy& spin_policy, const SharedFailureState& failures,
            uint64_t first_step)
        : operation(operation),
          waiter(spin_policy, failures.word(), operation.timeout),
          first_step(first_step) {}
    const Operation& operation;
    Waiter waiter;
    const uint64_t first_step;  // progress of all ranks when it began
    uint64_t word = 0;          // of every rank's post
    double factors[kMaxRanks];  // of kPremulSum, else not set
  };

  absl::Status RunSmall(Running& run, const Plan& plan);
  absl::Status RunOnePhase(Running& run, Plan plan);
  absl::Status RunTwoPhases(Running& run);

  // Publishes this rank's post (what it packed before is seen with it) and waits for all others.
  void Announce(Running& run);
  // Who has posted has made `step` steps.
  absl::Status AwaitPosts(Running& run, uint64_t step);
  // For uneven operations whose pairs agree among themselves: compares all pairs, sets the largest part in
  // bytes.
  absl::Status ComparePairs(Running& run, size_t* largest_part);
  // Until ranks other than this one have made `step` steps.
  absl::Status AwaitStep(Running& run, int rank, uint64_t step);
  absl::Status AwaitStepOfAll(Running& run, uint64_t step);
  void Advance(uint64_t step);
  // A piece of every rank's stage, whose readers will be done with it at `free_at`.
  absl::Status Reserve(Running& run, size_t bytes, uint64_t free_at, size_t* offset);

  PartLocation place(const Running& run) const;
  void PublishWord(std::atomic<uint64_t>& word, uint64_t value);
  absl::Status Disagree(const Running& run, int rank);
  // The error of a wait for `rank` that ended so.
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
  int part_ = kStageParts - 1;     // of the stage, where the last block lies
  size_t part_used_;               // bytes of it
  uint64_t part_free_at_[kStageParts] = {};
  LaneWriter writer_;  // of this rank's stage
};

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_EXCHANGE_H_
