#ifndef TANDEM_WORKER_TRAINER_GRADIENT_REDUCER_H_
#define TANDEM_WORKER_TRAINER_GRADIENT_REDUCER_H_

// Sums dense gradients over all workers while the backward pass still computes earlier layers.

#include <cstddef>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "collectives/process_group.h"

namespace tandem::worker {

// Owns a thread that calls the group; between Begin and Finish nobody else may use the group. Begin, Ready
// and Finish are called by one thread. The same calls in the same order on every rank.
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
  // Waits until every range is reduced. The first error, which also ends all later steps. Bounded by the
  // group's timeout.
  absl::Status Finish();

 private:
  using Range = std::pair<size_t, size_t>;
  void Flush();
  void ReduceLoop();

  collectives::ProcessGroup* const group_;
  const size_t bucket_floats_;
  absl::Span<float> gradients_;
  Range pending_{0, 0};  // ready, not yet queued; empty when first == second

  absl::Mutex mutex_;
  std::deque<absl::Span<float>> queue_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_GRADIENT_REDUCER_H_
