// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_STEP_HYBRID_TRAINER_H_
#define TANDEM_WORKER_STEP_HYBRID_TRAINER_H_

// One worker's part of hybrid parallelism. Embedding rows are pulled from and pushed to parameter servers,
// ahead of and behind the computation. All-reduce, overlapped with the backward pass, keeps the dense network
// equal on all workers. (The split into asynchronous sparse and synchronous dense parameters is PERSIA's,
// Lian et al., KDD 2022.)

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
#include "worker/step/replica_reducer.h"

namespace tandem::worker {

struct HybridOptions {
  // See PipelineOptions.
  int lookahead = 4;
  int max_in_flight = 8;
  // Dense gradients are all-reduced in buckets of at least this size.
  size_t bucket_bytes = size_t{1} << 20;
  // The dense optimizer's learning rate at a step, and the factor applied to the tables' learning rates
  // (null: always 1).
  std::function<double(uint64_t step)> learning_rate;
  std::function<double(uint64_t step)> learning_rate_factor;
  // The rows that all workers replicate; they are updated with the dense parameters, and never stale. The
  // trainer changes their set at step boundaries. nullptr: every row is on the servers. Outlives the trainer.
  ps::ReplicatedTables* replicas = nullptr;
  // Rank 0 writes the replicated rows to the servers after each step whose number is a multiple of this, for
  // programs that read the servers meanwhile; 0: never.
  uint64_t write_back_steps = 0;
};

// Wall time of a pass by stage, in seconds of the computing thread. `concurrent` has the times of the
// pipeline's own threads, which run concurrently.
struct StageTimes {
  double wait_rows = 0;  // waiting for the pull of the batch
  double gather = 0;     // copying rows into the model's input
  double forward = 0;    // including the loss
  double backward = 0;
  double wait_reduce = 0;  // the part of the all-reduce that nothing overlaps
  double optimizer = 0;
  // Changing the set of replicated rows, without the wait for pushes under way, and writing them back.
  double change = 0;
  PipelineTimes concurrent;
};

// Statistics of one pass of training.
struct PassStats {
  uint64_t steps = 0;
  uint64_t examples = 0;  // this worker's
  double loss_sum = 0;    // summed over examples, so that the workers' sums add up
  double seconds = 0;
  uint64_t ids = 0;            // looked up, repetitions included
  uint64_t unique_ids = 0;     // sent to the servers
  ServedCounts served;         // by table and segment: what replicas and servers served
  uint64_t replica_bytes = 0;  // of gradients of replicated rows that this worker sent
  StageTimes times;

  // Adds a pass that follows this one.
  void Add(const PassStats& next);
};

// Passed to the observer after each training step.
struct StepReport {
  uint64_t step = 0;
  size_t examples = 0;
  double loss = 0;
};

// Trains and evaluates a model with rows from parameter servers. Used by one thread. All pointers outlive the
// trainer; `group` may be nullptr for a single worker.
class HybridTrainer {
 public:
  HybridTrainer(ps::Client* client, collectives::ProcessGroup* group, Model* model, DenseOptimizer* optimizer,
                LookupPlan plan, const HybridOptions& options);
  ~HybridTrainer();

  // Makes one pass of training over `reader`. Blocks until every gradient is acknowledged. All workers'
  // readers must give the same number of batches. `observe` is called on this thread after each step. Returns
  // the first error of the reader, a pull, a push or an all-reduce.
  absl::StatusOr<PassStats> Train(BatchReader* reader,
                                  const std::function<void(const StepReport&)>& observe = nullptr);
  // Scores the examples of `reader` with the current rows. Creates no rows and applies no gradients.
  absl::StatusOr<ScoredExamples> Predict(BatchReader* reader);

  // Replaces the model's running averages (batch normalization) by their means over all workers. Train does
  // this at its end. Every worker must call it before a model is saved within a pass. Calling it again
  // changes nothing. No effect, and no communication, for models without running averages.
  absl::Status ReduceRunningAverages();

  // Returns what replicas and servers have served since the set of replicated rows last changed by much. The
  // client's row staleness covers the same time.
  const ServedCounts& served() const { return served_; }

  // Number of steps that every worker has done. A resumed trainer is given its number by set_step.
  uint64_t step() const { return step_; }
  void set_step(uint64_t step) { step_ = step; }

 private:
  class Segment;
  // Writes the replicated rows to the servers if that is due after `step_` steps.
  absl::Status WriteBackIfDue(PassStats* stats);
  absl::Status TrainSegment(Segment* segment, const std::function<void(const StepReport&)>& observe,
                            PassStats* stats);

  ps::Client* const client_;
  Model* const model_;
  DenseOptimizer* const optimizer_;
  const LookupPlan plan_;
  const HybridOptions options_;
  collectives::ProcessGroup* const group_;
  const int rank_;
  const int world_size_;
  GradientReducer reducer_;
  ReplicaReducer replica_reducer_;
  ServedCounts served_;
  absl::Status statistics_error_;  // of the all-reduces of batch statistics
  uint64_t step_ = 0;
  std::vector<float> logits_;
  std::vector<float> d_logits_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_STEP_HYBRID_TRAINER_H_
