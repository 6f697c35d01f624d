#ifndef TANDEM_WORKER_STEP_GRADIENT_REDUCER_H_
#define TANDEM_WORKER_STEP_GRADIENT_REDUCER_H_

// Sums dense gradients over all workers while the backward pass still computes earlier layers: in buckets, in
// the order in which the backward pass finishes them, each sent as soon as it is full (Li et al., PyTorch
// Distributed, VLDB 2020).
//
// Which numbers make a bucket follows from the model and the bucket's size alone, so that every rank reduces
// the same ones in the same order. Buckets change no bit of the sums where a backend adds in the order of
// ranks (shm). Others add a number's terms in an order that depends on its place in the message (rings,
// trees): there sums of three and more ranks may differ in the last bit between sizes of buckets, and do not
// differ between ranks or runs.

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/process_group.h"

namespace tandem::worker {

// All buckets but the last are queued on the group, whose thread runs them in order beside the backward pass;
// the last, which has nothing to lie beside, is run by the caller. Used by one thread; the same calls in the
// same order on every rank.
class GradientReducer {
 public:
  // `group` outlives the reducer; nullptr or a world of one makes everything a no-op. Ranges are gathered
  // into buckets of at least `bucket_bytes` before they are sent.
  GradientReducer(collectives::ProcessGroup* group, size_t bucket_bytes);
  ~GradientReducer();

  // A step's gradients; the memory stays with the caller until Finish.
  void Begin(absl::Span<float> gradients);
  // gradients[begin, end) is final and may be reduced from now on. Each number once.
  void Ready(size_t begin, size_t end);
  // Waits until every range is reduced, for each bucket at most the group's timeout. The first error, which
  // also ends all later steps.
  absl::Status Finish();

 private:
  using Range = std::pair<size_t, size_t>;
  void Send(bool wait);

  collectives::ProcessGroup* const group_;
  const size_t bucket_bytes_;
  absl::Span<float> gradients_;
  Range pending_{0, 0};  // ready, not yet sent; empty when first == second
  size_t left_ = 0;      // numbers that are not ready yet
  std::vector<collectives::Work> works_;
  absl::Status error_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_STEP_GRADIENT_REDUCER_H_
