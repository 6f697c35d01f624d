// SPDX-License-Identifier: Apache-2.0
// tandem data: generates data sets.

#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "worker/synthetic/planted.h"

namespace tandem::cli {
namespace {

struct PlantedFlags {
  worker::PlantedOptions options;
  std::string out;
};

void PrintSplit(const char* name, const worker::ClickMetrics& metrics) {
  std::printf("  %-5s  %10llu rows  best possible AUC %.5f, logloss %.5f\n", name,
              static_cast<unsigned long long>(metrics.examples), metrics.auc, metrics.logloss);
}

absl::Status WritePlanted(const PlantedFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const worker::PlantedSummary summary,
                          worker::WritePlanted(flags.options, flags.out));
  std::printf("%s: %llu rows; the figures below also in %s\n", flags.out.c_str(),
              static_cast<unsigned long long>(summary.rows), worker::PlantedSummaryPath(flags.out).c_str());
  PrintSplit("train", summary.train);
  PrintSplit("valid", summary.valid);
  PrintSplit("test", summary.test);
  return absl::OkStatus();
}

}  // namespace

void AddData(CLI::App& app, CommandContext* context) {
  CLI::App* data = app.add_subcommand("data", "Make data sets");
  data->require_subcommand(1);
  auto flags = std::make_shared<PlantedFlags>();
  worker::PlantedOptions& options = flags->options;
  CLI::App* planted = data->add_subcommand(
      "planted", "A click log with a known true model, and so a known best possible AUC");
  planted->add_option("--out", flags->out, "File to write, tab-separated (comma-separated if named .csv)")
      ->required();
  planted->add_option("--rows", options.rows, "Examples")->check(CLI::PositiveNumber)->capture_default_str();
  planted->add_option("--sparse", options.num_sparse, "Categorical columns")->capture_default_str();
  planted->add_option("--dense", options.num_dense, "Numeric columns")->capture_default_str();
  planted->add_option("--min-vocabulary", options.min_vocabulary, "Ids of the smallest column")
      ->capture_default_str();
  planted->add_option("--max-vocabulary", options.max_vocabulary, "Ids of the largest column")
      ->capture_default_str();
  planted->add_option("--zipf", options.zipf_exponent, "Exponent of the ids' distribution")
      ->capture_default_str();
  planted->add_option("--positive-rate", options.positive_rate, "Share of clicks, about")
      ->capture_default_str();
  planted->add_option("--seed", options.seed, "Of the model and the rows")->capture_default_str();
  planted->add_option("--valid", options.split.valid_fraction, "As data.split.valid of the job")
      ->capture_default_str();
  planted->add_option("--test", options.split.test_fraction, "As data.split.test of the job")
      ->capture_default_str();
  planted->add_option("--split-seed", options.split.seed, "As data.split.seed of the job")
      ->capture_default_str();
  planted->callback([flags, context] { context->exit_code = Report("data planted", WritePlanted(*flags)); });
}

}  // namespace tandem::cli
