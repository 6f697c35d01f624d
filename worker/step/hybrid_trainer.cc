// SPDX-License-Identifier: Apache-2.0
#include "worker/step/hybrid_trainer.h"

#include <utility>

#include "absl/time/clock.h"
#include "base/status.h"
#include "worker/nn/loss.h"
#include "worker/step/lap_timer.h"
#include "worker/step/trace_kinds.h"

namespace tandem::worker {

HybridTrainer::HybridTrainer(ps::Client* client, collectives::ProcessGroup* group, Model* model,
                             DenseOptimizer* optimizer, LookupPlan plan, const HybridOptions& options)
    : client_(client),
      model_(model),
      optimizer_(optimizer),
      plan_(std::move(plan)),
      options_(options),
      group_(group),
      rank_(group == nullptr ? 0 : group->rank()),
      world_size_(group == nullptr ? 1 : group->world_size()),
      reducer_(group, options.bucket_bytes) {
  if (world_size_ == 1) return;
  model_->SetSumOverWorkers([this](absl::Span<double> values) {
    if (statistics_error_.ok()) statistics_error_ = group_->AllReduce(values).status();
  });
}

HybridTrainer::~HybridTrainer() { model_->SetSumOverWorkers(nullptr); }

absl::Status HybridTrainer::ReduceRunningAverages() {
  const absl::Span<float> averages = model_->running_averages();
  if (averages.empty() || world_size_ == 1) return absl::OkStatus();
  std::vector<double> sums(averages.begin(), averages.end());
  TANDEM_RETURN_IF_ERROR(group_->AllReduce(absl::MakeSpan(sums)).status());
  for (size_t i = 0; i < sums.size(); ++i) averages[i] = static_cast<float>(sums[i] / world_size_);
  return absl::OkStatus();
}

absl::StatusOr<PassStats> HybridTrainer::Train(BatchReader* reader,
                                               const std::function<void(const StepReport&)>& observe) {
  LookupPipeline pipeline(client_, &plan_, reader,
                          {.lookahead = options_.lookahead,
                           .max_in_flight = options_.max_in_flight,
                           .read_only = false,
                           .first_step = step_});
  PassStats stats;
  StageTimes& times = stats.times;
  LapTimer whole;
  for (;;) {
    const uint64_t traced_step = trace::Begin();
    LapTimer lap;
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<LookedUp> batch, pipeline.Next());
    lap.AddTo(&times.wait_rows, kTraceWaitRows);
    if (batch == nullptr) break;
    const size_t examples = batch->batch.size;
    ModelInput input;
    batch->lookup.Gather(&input);
    lap.AddTo(&times.gather, kTraceGather);

    logits_.resize(examples);
    d_logits_.resize(examples);
    // Each worker draws its own dropout masks.
    model_->Forward(input, /*training=*/true, step_ * world_size_ + rank_, absl::MakeSpan(logits_));
    TANDEM_RETURN_IF_ERROR(statistics_error_);
    // Gradients of the mean over the global batch, so that sums over workers need no further scaling.
    const float scale = 1.0f / (static_cast<float>(examples) * static_cast<float>(world_size_));
    const double loss = BinaryCrossEntropy(logits_, batch->batch.labels, scale, absl::MakeSpan(d_logits_));
    lap.AddTo(&times.forward, kTraceForward);

    // The input gradients are computed and pushed first: the servers wait for them, and in sync mode so do
    // all workers' next pulls.
    model_->BackwardInputs(input, d_logits_, batch->lookup.GradientBuffers());
    TANDEM_RETURN_IF_ERROR(statistics_error_);
    const double factor = options_.learning_rate_factor ? options_.learning_rate_factor(step_) : 1.0;
    pipeline.Push(batch, static_cast<float>(factor));
    lap.AddTo(&times.backward, kTraceBackwardInputs);
    reducer_.Begin(model_->gradients());
    model_->BackwardParameters(input, d_logits_,
                               [this](size_t begin, size_t end) { reducer_.Ready(begin, end); });
    lap.AddTo(&times.backward, kTraceBackwardParameters);

    TANDEM_RETURN_IF_ERROR(reducer_.Finish());
    TANDEM_RETURN_IF_ERROR(statistics_error_);
    lap.AddTo(&times.wait_reduce, kTraceWaitReduce);
    optimizer_->Step(static_cast<float>(options_.learning_rate(step_)), model_->gradients(),
                     model_->parameters());
    lap.AddTo(&times.optimizer, kTraceOptimizer);
    trace::End(kTraceStep, traced_step, static_cast<int64_t>(step_), static_cast<int64_t>(examples));

    ++stats.steps;
    stats.examples += examples;
    stats.loss_sum += loss * static_cast<double>(examples);
    if (observe) observe({.step = step_, .examples = examples, .loss = loss});
    ++step_;
  }
  TANDEM_RETURN_IF_ERROR(pipeline.Drain());
  // Gradients that caches have deferred belong to this pass.
  TANDEM_RETURN_IF_ERROR(client_->PushDeferred());
  TANDEM_RETURN_IF_ERROR(ReduceRunningAverages());
  whole.AddTo(&stats.seconds);
  times.concurrent = pipeline.times();
  stats.ids = pipeline.ids();
  stats.unique_ids = pipeline.unique_ids();
  return stats;
}

absl::StatusOr<ScoredExamples> HybridTrainer::Predict(BatchReader* reader) {
  LookupPipeline pipeline(client_, &plan_, reader,
                          {.lookahead = options_.lookahead, .read_only = true, .first_step = step_});
  // Every batch reads the rows as of the same step, because no worker pushes during an evaluation.
  ScoredExamples scored;
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<LookedUp> batch, pipeline.Next());
    if (batch == nullptr) return scored;
    ModelInput input;
    batch->lookup.Gather(&input);
    logits_.resize(batch->batch.size);
    model_->Forward(input, /*training=*/false, step_, absl::MakeSpan(logits_));
    scored.Add(batch->batch.labels, logits_);
  }
}

}  // namespace tandem::worker
