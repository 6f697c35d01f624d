// SPDX-License-Identifier: Apache-2.0
#include "worker/step/hybrid_trainer.h"

#include <utility>

#include "absl/time/clock.h"
#include "base/status.h"
#include "worker/nn/loss.h"
#include "worker/step/lap_timer.h"
#include "worker/step/trace_kinds.h"

namespace tandem::worker {

void PassStats::Add(const PassStats& next) {
  steps += next.steps;
  examples += next.examples;
  loss_sum += next.loss_sum;
  seconds += next.seconds;
  ids += next.ids;
  unique_ids += next.unique_ids;
  replica_bytes += next.replica_bytes;
  if (served.empty()) {
    served = next.served;
  } else {
    AddServed(next.served, &served);
  }
  times.wait_rows += next.times.wait_rows;
  times.gather += next.times.gather;
  times.forward += next.times.forward;
  times.backward += next.times.backward;
  times.wait_reduce += next.times.wait_reduce;
  times.optimizer += next.times.optimizer;
  times.change += next.times.change;
  times.concurrent.Add(next.times.concurrent);
}

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
      reducer_(group, options.bucket_bytes),
      replica_reducer_(group, options.replicas),
      served_(NoneServed(plan_)) {
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

// The batches of a pass between two changes of the set of replicated rows.
class HybridTrainer::Segment : public BatchReader {
 public:
  explicit Segment(BatchReader* reader) : reader_(reader) {}
  absl::StatusOr<bool> Next(Batch* batch) override {
    if (left_ == 0 || at_end_) return false;
    --left_;
    absl::StatusOr<bool> more = reader_->Next(batch);
    at_end_ = !more.ok() || !*more;
    return more;
  }
  uint64_t malformed_lines() const override { return reader_->malformed_lines(); }
  void Begin(uint64_t batches) { left_ = batches; }
  // Returns true if the pass has no more batches.
  bool at_end() const { return at_end_; }

 private:
  BatchReader* const reader_;
  uint64_t left_ = 0;
  bool at_end_ = false;
};

absl::StatusOr<PassStats> HybridTrainer::Train(BatchReader* reader,
                                               const std::function<void(const StepReport&)>& observe) {
  PassStats stats;
  stats.served = NoneServed(plan_);
  const uint64_t sent_before = replica_reducer_.sent_bytes();
  LapTimer whole;
  for (Segment segment(reader); !segment.at_end();) {
    ps::ReplicatedTables* const replicas = options_.replicas;
    segment.Begin(replicas == nullptr ? ~uint64_t{0} : replicas->NextChange(step_) - step_);
    TANDEM_RETURN_IF_ERROR(TrainSegment(&segment, observe, &stats));
    if (segment.at_end()) break;
    LapTimer lap;
    // A gradient that reaches the servers after its row has become a replica is lost.
    TANDEM_RETURN_IF_ERROR(client_->PushDeferred());
    const bool start_ends = replicas->starting();
    TANDEM_ASSIGN_OR_RETURN(const ps::SetChange change, replicas->Change(step_));
    // After a large change, earlier measurements no longer describe the training.
    if (start_ends || change.joined > change.rows / 8) {
      for (const LookupTable& table : plan_.tables) {
        TANDEM_RETURN_IF_ERROR(client_->ResetRowStalenessStatistics(table.name));
      }
      served_ = NoneServed(plan_);
    }
    lap.AddTo(&stats.times.change, kTraceChangeReplicas, static_cast<int64_t>(step_));
  }
  // Gradients that caches have deferred belong to this pass.
  TANDEM_RETURN_IF_ERROR(client_->PushDeferred());
  TANDEM_RETURN_IF_ERROR(ReduceRunningAverages());
  whole.AddTo(&stats.seconds);
  stats.replica_bytes = replica_reducer_.sent_bytes() - sent_before;
  return stats;
}

absl::Status HybridTrainer::WriteBackIfDue(PassStats* stats) {
  const uint64_t every = options_.write_back_steps;
  if (options_.replicas == nullptr || rank_ != 0 || every == 0 || step_ % every != 0) return absl::OkStatus();
  LapTimer lap;
  const absl::Status written = options_.replicas->WriteBack();
  lap.AddTo(&stats->times.change, kTraceChangeReplicas, static_cast<int64_t>(step_));
  return written;
}

absl::Status HybridTrainer::TrainSegment(Segment* segment,
                                         const std::function<void(const StepReport&)>& observe,
                                         PassStats* stats) {
  ps::ReplicatedTables* const replicas = options_.replicas;
  LookupPipeline pipeline(client_, &plan_, segment,
                          {.lookahead = options_.lookahead,
                           .max_in_flight = options_.max_in_flight,
                           .read_only = false,
                           .first_step = step_,
                           .replicas = replicas,
                           .batch_share = 1.0f / static_cast<float>(world_size_)});
  StageTimes& times = stats->times;
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
    const auto factor =
        static_cast<float>(options_.learning_rate_factor ? options_.learning_rate_factor(step_) : 1.0);
    // Before the push, which reads the same arrays in another thread.
    if (replicas != nullptr) batch->lookup.ScatterReplicated();
    pipeline.Push(batch, factor);
    lap.AddTo(&times.backward, kTraceBackwardInputs);
    replica_reducer_.Begin();
    reducer_.Begin(model_->gradients());
    model_->BackwardParameters(input, d_logits_,
                               [this](size_t begin, size_t end) { reducer_.Ready(begin, end); });
    lap.AddTo(&times.backward, kTraceBackwardParameters);

    const absl::Status reduced = reducer_.Finish();
    const absl::Status replicas_reduced = replica_reducer_.Finish();
    TANDEM_RETURN_IF_ERROR(reduced);
    TANDEM_RETURN_IF_ERROR(replicas_reduced);
    TANDEM_RETURN_IF_ERROR(statistics_error_);
    lap.AddTo(&times.wait_reduce, kTraceWaitReduce);
    optimizer_->Step(static_cast<float>(options_.learning_rate(step_)), model_->gradients(),
                     model_->parameters());
    if (replicas != nullptr) TANDEM_RETURN_IF_ERROR(replicas->Apply(step_, factor));
    lap.AddTo(&times.optimizer, kTraceOptimizer);
    trace::End(kTraceStep, traced_step, static_cast<int64_t>(step_), static_cast<int64_t>(examples));

    ++stats->steps;
    stats->examples += examples;
    stats->loss_sum += loss * static_cast<double>(examples);
    if (observe) observe({.step = step_, .examples = examples, .loss = loss});
    ++step_;
    TANDEM_RETURN_IF_ERROR(WriteBackIfDue(stats));
  }
  TANDEM_RETURN_IF_ERROR(pipeline.Drain());
  times.concurrent.Add(pipeline.times());
  stats->ids += pipeline.ids();
  stats->unique_ids += pipeline.unique_ids();
  const ServedCounts served = pipeline.served();
  AddServed(served, &stats->served);
  AddServed(served, &served_);
  return absl::OkStatus();
}

absl::StatusOr<ScoredExamples> HybridTrainer::Predict(BatchReader* reader) {
  LookupPipeline pipeline(client_, &plan_, reader,
                          {.lookahead = options_.lookahead,
                           .read_only = true,
                           .first_step = step_,
                           .replicas = options_.replicas});
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
