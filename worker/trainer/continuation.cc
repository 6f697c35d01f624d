// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/continuation.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/command_context.h"
#include "worker/trainer/data_identity.h"

namespace tandem::worker {
namespace {

void Append(const std::vector<std::string>& from, std::vector<std::string>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

}  // namespace

absl::StatusOr<Continuation> ContinueFrom(const std::string& path, const v1::CheckpointManifest& checkpoint,
                                          const v1::DataIdentity& now, bool data_changed) {
  const DataDifferences found = CompareData(checkpoint.data(), now);
  Continuation continuation{.other_data = !found.features.empty() || !found.training.empty(),
                            .other_validation = !found.validation.empty()};
  Append(found.features, &continuation.differences);
  Append(found.training, &continuation.differences);
  Append(found.validation, &continuation.differences);
  // Between two epochs the order of the examples may change.
  const bool within_epoch =
      checkpoint.has_position() && checkpoint.position().batches() > 0 && !found.order.empty();
  if (within_epoch) {
    continuation.other_data = true;
    Append(found.order, &continuation.differences);
  }
  if (continuation.differences.empty() || data_changed) return continuation;
  const bool only_order = found.features.empty() && found.training.empty() && found.validation.empty();
  std::string message =
      absl::StrCat(path,
                   only_order ? " is in the midst of an epoch that reads its examples in another order: "
                              : " was trained on other data: ",
                   absl::StrJoin(continuation.differences, "; "));
  if (!found.features.empty()) {
    absl::StrAppend(
        &message,
        ". Give the checkpoint's columns, or train a new model in another directory (--set "
        "checkpoint.dir=DIR). --data-changed goes on all the same with the parameters of the checkpoint");
  } else {
    absl::StrAppend(&message,
                    ". Give the run's own data, or add --data-changed to go on with its model on this data: ",
                    continuation.other_data ? "epochs, position and the best model then start anew"
                                            : "the best model then starts anew");
  }
  return Refusal(message);
}

void BeginAnew(const Continuation& continuation, ModelState* state) {
  if (!continuation.other_data && !continuation.other_validation) return;
  for (auto metric = state->metrics.begin(); metric != state->metrics.end();) {
    const bool stays = !continuation.other_data && metric->first == kPlateauFactorMetric;
    metric = stays ? std::next(metric) : state->metrics.erase(metric);
  }
  state->best_step.reset();
  if (!continuation.other_data) return;
  state->epoch = 0;
  state->position.reset();
  state->data_step = state->step;
}

std::string WhyNothingToTrain(const JobSpec& job, const v1::CheckpointManifest& checkpoint,
                              const Continuation& continuation) {
  if (continuation.other_data) return "";
  const auto epochs = static_cast<uint64_t>(job.train.epochs);
  if (checkpoint.epoch() >= epochs) {
    return absl::StrCat("its run has trained ", checkpoint.epoch(), " of ", epochs,
                        " epochs; train more with --set train.epochs=", 2 * checkpoint.epoch());
  }
  if (checkpoint.has_position() || continuation.other_validation) return "";
  const auto bad = checkpoint.metrics().find("epochs_since_best");
  const int patience = job.train.early_stopping.patience;
  if (patience == 0 || bad == checkpoint.metrics().end() || bad->second < patience) return "";
  return absl::StrCat("its run has stopped early, after ", checkpoint.epoch(), " of ", epochs,
                      " epochs, because the last ", bad->second,
                      " were no better; train more with --set train.early_stopping.patience=", 2 * patience);
}

InputStatistics StatisticsOf(const v1::InputState& input) {
  InputStatistics statistics{.index_features = static_cast<int>(input.index_features())};
  for (const v1::DenseInput& dense : input.dense()) {
    statistics.dense.push_back({.column = dense.column(),
                                .measured = dense.measured(),
                                .mean = dense.mean(),
                                .scale = dense.scale()});
  }
  return statistics;
}

}  // namespace tandem::worker
