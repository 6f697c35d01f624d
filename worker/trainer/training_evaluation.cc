// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/logging.h"
#include "base/status.h"
#include "worker/data/prefetch_reader.h"
#include "worker/evaluation/logistic_baseline.h"
#include "worker/evaluation/metrics.h"
#include "worker/synthetic/planted.h"
#include "worker/trainer/training_run_impl.h"

namespace tandem::worker {

absl::StatusOr<Quality> TrainingRun::Evaluate(Split split, ScoredExamples* all) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<BatchReader> reader,
                          dataset_->Read({.split = split,
                                          .batch_size = std::max<size_t>(batch_size_, 1024),
                                          .rank = rank_,
                                          .world_size = world_size_,
                                          .tail = ReadOptions::Tail::kExact}));
  PrefetchReader ahead(std::move(reader), kReadAhead);
  TANDEM_ASSIGN_OR_RETURN(ScoredExamples mine, trainer_->Predict(&ahead));
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> gathered,
                          context_.group->AllGatherBytes(mine.Serialize()));
  ScoredExamples merged;
  for (const std::string& theirs : gathered) {
    TANDEM_ASSIGN_OR_RETURN(ScoredExamples part, ScoredExamples::Parse(theirs));
    merged.Merge(part);
  }
  // All ranks hold the same examples in the same order, so they compute the same metrics.
  const uint64_t examples = merged.size();
  const auto positives = static_cast<uint64_t>(std::count_if(merged.labels().begin(), merged.labels().end(),
                                                             [](float label) { return label > 0.5f; }));
  if (positives == 0 || positives == examples) {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    const Quality quality{
        .auc = kNone,
        .logloss = examples == 0 ? kNone : LogLossFromLogits(merged.labels(), merged.logits()),
        .examples = examples};
    if (is_leader() && !warned_of_[split == Split::kValid]) {
      warned_of_[split == Split::kValid] = true;
      LogWarning(absl::StrCat("the ", split == Split::kValid ? "validation" : "test", " split has ", examples,
                              " examples, ", positives, " of them positive: its AUC is n/a"));
    }
    if (all != nullptr) *all = std::move(merged);
    return quality;
  }
  const absl::StatusOr<ClickMetrics> metrics = merged.Evaluate();
  if (!metrics.ok()) {
    return Annotate(metrics.status(), absl::StrCat("evaluating the ",
                                                   split == Split::kValid ? "validation" : "test", " split"));
  }
  if (all != nullptr) *all = std::move(merged);
  return Quality{.auc = metrics->auc, .logloss = metrics->logloss, .examples = metrics->examples};
}

absl::Status TrainingRun::Test() {
  // The best epoch's model is the one that is tested and kept. It is the current one unless a later epoch was
  // worse.
  const bool current_is_best = !report_.epochs.empty() && report_.epochs.back().best;
  double reload[] = {!current_is_best && !best_checkpoint_.empty() ? 1.0 : 0.0};
  TANDEM_RETURN_IF_ERROR(BroadcastFromLeader(absl::MakeSpan(reload)));
  report_.tested_epoch = report_.best_epoch;
  if (reload[0] == 0.0 && !current_is_best && report_.best_epoch > 0) {
    report_.tested_epoch = report_.epochs.empty() ? first_epoch_ - 1 : report_.epochs.back().epoch;
    if (is_leader()) {
      LogWarning(absl::StrCat("there is no checkpoint of the best epoch, ", report_.best_epoch,
                              ": the model of epoch ", report_.tested_epoch, " is tested"));
    }
  }
  if (reload[0] == 1.0) {
    ModelState state;
    TANDEM_RETURN_IF_ERROR(
        Annotate(Load([this] { return LoadModel(job_, best_checkpoint_, context_.client); }, &state),
                 "loading the best epoch's checkpoint"));
  }
  SetState("testing");
  ScoredExamples scored;
  TANDEM_ASSIGN_OR_RETURN(report_.test, Evaluate(Split::kTest, &scored));
  scalars_.Test(trainer_->step(), report_.test);
  if (is_leader() && !options_.predictions.empty()) return WritePredictions(scored);
  return absl::OkStatus();
}

absl::Status TrainingRun::WritePredictions(const ScoredExamples& scored) {
  std::ofstream out(options_.predictions, std::ios::trunc);
  for (size_t i = 0; i < scored.size(); ++i) {
    out << absl::StrFormat("%d\t%.9g\n", scored.labels()[i] > 0.5f ? 1 : 0, Sigmoid(scored.logits()[i]));
  }
  out.close();
  if (!out)
    return absl::UnavailableError(absl::StrCat("cannot write predictions to '", options_.predictions, "'"));
  return absl::OkStatus();
}

void TrainingRun::AddBaselines() {
  LogInfo(
      "fits logistic regression in one process, for the comparison in the report (--no-baselines: without)");
  const absl::StatusOr<LogisticBaseline> baseline =
      TrainLogisticBaseline(dataset_.get(), {.seed = job_.train.seed});
  if (!baseline.ok()) {
    LogWarning(absl::StrCat("no baselines: ", baseline.status().message()));
    return;
  }
  report_.baselines.push_back(
      {"global mean",
       {.auc = 0.5, .logloss = baseline->mean_test_logloss, .examples = baseline->test.examples}});
  report_.baselines.push_back(
      {"logistic regression (one process)",
       {.auc = baseline->test.auc, .logloss = baseline->test.logloss, .examples = baseline->test.examples}});
  // A generated log comes with the metrics of its true model. They apply only if the job splits the log as
  // its generator did.
  if (job_.data.train_files.size() != 1 || !job_.data.test_files.empty()) return;
  const absl::StatusOr<PlantedSummary> planted = ReadPlantedSummary(job_.data.train_files[0]);
  if (!planted.ok() || planted->test.examples != report_.test.examples) return;
  report_.baselines.push_back(
      {"best possible (the planted model)",
       {.auc = planted->test.auc, .logloss = planted->test.logloss, .examples = planted->test.examples}});
}

absl::Status TrainingRun::AddTables() {
  TANDEM_ASSIGN_OR_RETURN(auto servers, context_.client->ListTablesPerServer(0));
  for (const v1::TableConfig& table : plan_.tables) {
    report_.tables.push_back(SummarizeTable(table.name(), servers));
    TANDEM_ASSIGN_OR_RETURN(report_.tables.back().feedback,
                            context_.client->FeedbackStatistics(table.name()));
    replication_->AddTable(report_.tables.size() - 1, &report_.tables.back());
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::AddCaches() {
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    if (plan_.caches[t].bytes == 0) continue;
    const std::string& name = plan_.tables[t].name();
    TANDEM_ASSIGN_OR_RETURN(const ps::CacheStatistics mine, context_.client->CacheStatisticsOf(name));
    // Sent as raw bytes: the workers are processes of the same program.
    static_assert(std::is_trivially_copyable_v<ps::CacheStatistics>);
    TANDEM_ASSIGN_OR_RETURN(
        const std::vector<std::string> gathered,
        context_.group->AllGatherBytes(std::string(reinterpret_cast<const char*>(&mine), sizeof(mine))));
    if (!is_leader()) continue;
    ps::CacheStatistics sum;
    for (const std::string& theirs : gathered) {
      if (theirs.size() != sizeof(sum))
        return absl::DataLossError("a worker sent malformed cache statistics");
      ps::CacheStatistics one;
      std::memcpy(&one, theirs.data(), sizeof(one));
      sum.Add(one);
    }
    for (TableReport& table : report_.tables) {
      if (table.name == name) table.cache = sum;
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::worker
