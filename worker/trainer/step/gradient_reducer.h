#ifndef TANDEM_WORKER_TRAINER_STEP_GRADIENT_REDUCER_H_
#define TANDEM_WORKER_TRAINER_STEP_GRADIENT_REDUCER_H_

// Sums dense gradients over all workers while the backward pass still computes earlier layers.

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/process_group.h"

namespace tandem::worker {

// Queues asynchronous operations on the group, whose thread runs them in order. Used by one thread; the same
// calls in the same order on every rank.
class GradientReducer {
 public:
  // `group` outlives the reducer; nullptr or a world of one makes everything a no-op. Ranges are gathered
  // into buckets of at least `bucket_floats` before they are sent.
  GradientReducer(collectives::ProcessGroup* group, size_t bucket_floats);
  ~GradientReducer();

  // A step's gradients; the memory stays with the caller until Finish.
  void Begin(absl::Span<float> gradients);
  // gradients[begin, end) is final and may be reduced from now on.
  void Ready(size_t begin, size_t end);
  // Waits until every range is reduced, for each bucket at most the group's timeout. The first error, which
  // also ends all later steps.
  absl::Status Finish();

 private:
  using Range = std::pair<size_t, size_t>;
  void Flush();

  collectives::ProcessGroup* const group_;
  const size_t bucket_floats_;
  absl::Span<float> gradients_;
  Range pending_{0, 0};  // ready, not yet queued; empty when first == second
  std::vector<collectives::Work> works_;
  absl::Status error_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_STEP_GRADIENT_REDUCER_H_
