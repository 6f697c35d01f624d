// SPDX-License-Identifier: Apache-2.0
#include "worker/report/training_scalars.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"

namespace tandem::worker {

absl::Status TrainingScalars::Open(const std::string& directory, int rank, ps::Client* client) {
  client_ = client;
  TANDEM_ASSIGN_OR_RETURN(worker_,
                          TensorboardWriter::Open(absl::StrCat(directory, "/worker-", rank), clock_));
  for (uint32_t s = 0; rank == 0 && s < client->num_servers(); ++s) {
    TANDEM_ASSIGN_OR_RETURN(servers_.emplace_back(),
                            TensorboardWriter::Open(absl::StrCat(directory, "/ps-", s), clock_));
  }
  return absl::OkStatus();
}

void TrainingScalars::Write(TensorboardWriter* writer, uint64_t step,
                            const std::vector<TensorboardWriter::Scalar>& scalars) {
  if (failed_) return;
  std::vector<TensorboardWriter::Scalar> defined = scalars;  // without metrics that are not available
  defined.erase(
      std::remove_if(defined.begin(), defined.end(),
                     [](const TensorboardWriter::Scalar& scalar) { return std::isnan(scalar.second); }),
      defined.end());
  if (const absl::Status written = writer->Write(static_cast<int64_t>(step), defined); !written.ok()) {
    LogWarning(absl::StrCat(written.message(), "; no more is written there"));
    failed_ = true;
  }
}

void TrainingScalars::BeginEpoch() {
  last_write_ = clock_->Now();
  loss_sum_ = 0;
  examples_ = 0;
}

void TrainingScalars::Step(const StepReport& step, double learning_rate) {
  if (worker_ == nullptr) return;
  loss_sum_ += step.loss * static_cast<double>(step.examples);
  examples_ += step.examples;
  last_step_ = step.step;
  last_learning_rate_ = learning_rate;
  if (clock_->Now() - last_write_ >= every_) WriteSteps(step.step, learning_rate);
}

void TrainingScalars::WriteSteps(uint64_t step, double learning_rate) {
  const absl::Time now = clock_->Now();
  const double examples = static_cast<double>(examples_);
  const double seconds = std::max(1e-9, absl::ToDoubleSeconds(now - last_write_));
  Write(worker_.get(), step,
        {{"train/loss", loss_sum_ / examples},
         {"train/samples_per_s", examples / seconds},
         {"train/learning_rate", learning_rate}});
  last_write_ = now;
  loss_sum_ = 0;
  examples_ = 0;
  WriteServers(step);
}

void TrainingScalars::WriteServers(uint64_t step) {
  if (servers_.empty() || failed_) return;
  const auto tables = client_->ListTablesPerServer(0);
  if (!tables.ok()) return;  // the training itself reports such an error
  for (size_t s = 0; s < std::min(servers_.size(), tables->size()); ++s) {
    std::vector<std::pair<std::string, double>> numbers;
    for (const v1::TableInfo& table : (*tables)[s]) {
      const std::string& name = table.config().name();
      const v1::TableStatistics& statistics = table.statistics();
      const auto& histogram = statistics.staleness_histogram();
      Staleness now;
      now.pushes = std::accumulate(histogram.begin(), histogram.end(), 0.0);
      now.sum = statistics.staleness_mean() * now.pushes;
      Staleness& before = staleness_[{s, name}];
      if (now.pushes > before.pushes) {
        numbers.emplace_back(absl::StrCat(name, "/staleness"),
                             std::max(0.0, (now.sum - before.sum) / (now.pushes - before.pushes)));
      }
      before = now;
      numbers.emplace_back(absl::StrCat(name, "/rows"), static_cast<double>(statistics.rows()));
      numbers.emplace_back(absl::StrCat(name, "/bytes"), static_cast<double>(statistics.bytes()));
    }
    Write(servers_[s].get(), step, {numbers.begin(), numbers.end()});
  }
}

void TrainingScalars::EndEpoch(const EpochReport& epoch) {
  if (worker_ == nullptr) return;
  if (examples_ > 0) WriteSteps(last_step_, last_learning_rate_);
  Write(worker_.get(), epoch.step,
        {{"epoch/train_loss", epoch.train_loss},
         {"epoch/samples_per_s", epoch.samples_per_s},
         {"epoch/valid_auc", epoch.valid.auc},
         {"epoch/valid_logloss", epoch.valid.logloss}});
}

void TrainingScalars::Test(uint64_t step, const Quality& quality) {
  if (worker_ == nullptr) return;
  Write(worker_.get(), step, {{"test/auc", quality.auc}, {"test/logloss", quality.logloss}});
}

}  // namespace tandem::worker
