// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_STEP_GRADIENT_REDUCER_H_
#define TANDEM_WORKER_STEP_GRADIENT_REDUCER_H_

// Sums dense gradients over all workers while the backward pass still computes earlier layers. Gradients are
// sent in buckets, in the order in which the backward pass finishes them, each bucket as soon as it is full
// (Li et al., PyTorch Distributed, VLDB 2020).
//
// The content of a bucket follows from the model and the bucket size alone, so every rank reduces the same
// numbers in the same order. The bucket size does not change a bit of the sums if the backend adds in rank
// order (shm). Other backends (rings, trees) add a number's terms in an order that depends on its position in
// the message. With three or more ranks their sums may differ in the last bit between bucket sizes, but never
// between ranks or runs.

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/process_group.h"

namespace tandem::worker {

// Reduces the gradients of one step after another. The group's thread reduces all buckets but the last, in
// order and concurrently with the backward pass. The calling thread reduces the last bucket, because nothing
// is left to overlap it with. Used by one thread; every rank must make the same calls in the same order.
class GradientReducer {
 public:
  // `group` outlives the reducer. If it is nullptr or has one rank, every call is a no-op. Ranges are
  // collected into buckets of at least `bucket_bytes` before they are sent.
  GradientReducer(collectives::ProcessGroup* group, size_t bucket_bytes);
  ~GradientReducer();

  // Starts a step with its gradient array. The memory stays with the caller, which must keep it valid until
  // Finish.
  void Begin(absl::Span<float> gradients);
  // Declares gradients[begin, end) final: it may be reduced from now on. Each number must be declared exactly
  // once per step.
  void Ready(size_t begin, size_t end);
  // Waits until every range is reduced; each bucket takes at most the group's timeout. Returns the first
  // error, which every later step returns too.
  absl::Status Finish();

 private:
  using Range = std::pair<size_t, size_t>;
  // Reduces pending_: on the calling thread if `wait`, else on the group's.
  void Send(bool wait);

  collectives::ProcessGroup* const group_;
  const size_t bucket_bytes_;
  absl::Span<float> gradients_;
  Range pending_{0, 0};  // ready but not yet sent; empty if first == second
  size_t left_ = 0;      // numbers not ready yet
  std::vector<collectives::Work> works_;
  absl::Status error_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_STEP_GRADIENT_REDUCER_H_
