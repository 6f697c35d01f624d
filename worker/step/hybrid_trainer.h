#ifndef TANDEM_WORKER_STEP_HYBRID_TRAINER_H_
#define TANDEM_WORKER_STEP_HYBRID_TRAINER_H_

// Hybrid parallelism, one worker's part of it: embedding rows are pulled from and pushed to parameter
// servers, ahead of and behind the computation; the dense network is kept equal on all workers by all-reduce,
// overlapping the backward pass. (The split into asynchronous sparse and synchronous dense parameters is
// PERSIA's, Lian et al., KDD 2022.)

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/process_group.h"
#include "ps/client/client.h"
#include "worker/data/dataset.h"
#include "worker/evaluation/metrics.h"
#include "worker/models/model.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/step/gradient_reducer.h"
#include "worker/step/lookup_pipeline.h"

namespace tandem::worker {

struct HybridOptions {
  int lookahead = 4;
  int max_in_flight = 8;
  size_t bucket_bytes = size_t{1} << 20;  // dense gradients are all-reduced in buckets of at least this many
  // At a step: the dense optimizer's learning rate, and the factor on those of the tables (null: always 1).
  std::function<double(uint64_t step)> learning_rate;
  std::function<double(uint64_t step)> learning_rate_factor;
};

// Where a pass's time went, in seconds of the computing thread; `beside` is that of the pipeline's own
// threads.
struct StageTimes {
  double wait_rows = 0;  // for the pull of the batch to finish
  double gather = 0;     // rows into the model's input
  double forward = 0;    // loss included
  double backward = 0;
  double wait_reduce = 0;  // what of the all-reduce the rest did not hide
  double optimizer = 0;
  PipelineTimes beside;
};

struct PassStats {
  uint64_t steps = 0;
  uint64_t examples = 0;  // this worker's
  double loss_sum = 0;    // of examples, so that workers' sums add up
  double seconds = 0;
  uint64_t ids = 0;         // looked up
  uint64_t unique_ids = 0;  // pulled
  StageTimes times;
};

// What an observer is told after each training step.
struct StepReport {
  uint64_t step = 0;
  size_t examples = 0;
  double loss = 0;
};

// Used by one thread. All pointers outlive the trainer; `group` may be nullptr for a single worker.
class HybridTrainer {
 public:
  HybridTrainer(ps::Client* client, collectives::ProcessGroup* group, Model* model, DenseOptimizer* optimizer,
                LookupPlan plan, const HybridOptions& options);

  // One pass of training over `reader`. Returns when every gradient is acknowledged. All workers' readers
  // must give the same number of batches. `observe` is called after each step, on this thread.
  absl::StatusOr<PassStats> Train(BatchReader* reader,
                                  const std::function<void(const StepReport&)>& observe = nullptr);
  // Scores of this worker's shard, with the rows as they are: no row is made, no gradient applied.
  absl::StatusOr<ScoredExamples> Predict(BatchReader* reader);

  // Steps done by every worker so far; a resumed trainer is told where it was.
  uint64_t step() const { return step_; }
  void set_step(uint64_t step) { step_ = step; }

 private:
  ps::Client* const client_;
  Model* const model_;
  DenseOptimizer* const optimizer_;
  const LookupPlan plan_;
  const HybridOptions options_;
  const int rank_;
  const int world_size_;
  GradientReducer reducer_;
  uint64_t step_ = 0;
  std::vector<float> logits_;
  std::vector<float> d_logits_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_STEP_HYBRID_TRAINER_H_
