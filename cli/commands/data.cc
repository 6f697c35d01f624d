// SPDX-License-Identifier: Apache-2.0
// tandem data: generates data sets.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/config_field.h"
#include "base/local_path.h"
#include "base/number_flag.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "worker/synthetic/planted.h"

namespace tandem::cli {
namespace {

struct PlantedFlags {
  worker::PlantedOptions options;
  std::vector<std::string> columns;  // vocabulary:exponent
  std::string out;
};

absl::Status ParseColumns(const std::vector<std::string>& texts,
                          std::vector<worker::PlantedColumn>* columns) {
  for (const std::string& text : texts) {
    const std::vector<std::string> parts = absl::StrSplit(text, ':');
    worker::PlantedColumn column;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &column.vocabulary) ||
        !absl::SimpleAtod(parts[1], &column.zipf_exponent)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--column is '", text,
                       "'; it must be IDS:EXPONENT, as 1000000:1.05, or 1000000:0 for uniform ids"));
    }
    columns->push_back(column);
  }
  return absl::OkStatus();
}

void PrintSplit(const char* name, const worker::ClickMetrics& metrics) {
  std::printf("  %-5s  %10llu rows  best possible AUC %.5f, logloss %.5f\n", name,
              static_cast<unsigned long long>(metrics.examples), metrics.auc, metrics.logloss);
}

absl::Status WritePlanted(const PlantedFlags& flags) {
  worker::PlantedOptions options = flags.options;
  TANDEM_RETURN_IF_ERROR(ParseColumns(flags.columns, &options.more_columns));
  TANDEM_ASSIGN_OR_RETURN(const worker::PlantedSummary summary, worker::WritePlanted(options, flags.out));
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
  LocalPath(planted->add_option("--out", flags->out,
                                "File to write, tab-separated (comma-separated if named .csv)"))
      ->required();
  const auto number = [planted](const char* name, auto* value, const Range& range, const char* help) {
    LimitTo(range, planted->add_option(name, *value, help)->capture_default_str());
  };
  const Range kSeeds = Between(0, 0x1p63);
  number("--rows", &options.rows, Between(1, 1e12), "Examples");
  number("--sparse", &options.num_sparse, Between(1, 1024), "Categorical columns");
  number("--dense", &options.num_dense, Between(0, 1024), "Numeric columns");
  number("--min-vocabulary", &options.min_vocabulary, Between(2, 1 << 24), "Ids of the smallest column");
  number("--max-vocabulary", &options.max_vocabulary, Between(2, 1 << 24), "Ids of the largest column");
  number("--zipf", &options.zipf_exponent, Between(0, 10), "Exponent of the ids' distribution");
  planted
      ->add_option("--column", flags->columns,
                   "IDS:EXPONENT of a further categorical column, which interacts with none; may be repeated")
      ->allow_extra_args(false);
  number(
      "--interaction-stddev", &options.interaction_stddev, Between(0, 100),
      "How much the pairs of the four smallest columns matter: the deviation of their part of the logit, of "
      "which a model without interactions learns nothing");
  number("--positive-rate", &options.positive_rate,
         Range{.min = 0, .max = 1, .above_min = true, .below_max = true}, "Share of clicks, about");
  number("--seed", &options.seed, kSeeds, "Of the model and the rows");
  number("--valid", &options.split.valid_fraction, Fraction(), "As data.split.valid of the job");
  number("--test", &options.split.test_fraction, Fraction(), "As data.split.test of the job");
  number("--split-seed", &options.split.seed, kSeeds, "As data.split.seed of the job");
  planted
      ->add_option_function<std::string>(
          "--split-by",
          [&options](const std::string& by) {
            options.split.by = by == "text" ? worker::SplitBy::kText : worker::SplitBy::kPosition;
          },
          "As data.split.by of the job: text or position [text]")
      ->check(CLI::IsMember({"text", "position"}));
  planted->callback([flags, context] { context->exit_code = Report("data planted", WritePlanted(*flags)); });
}

}  // namespace tandem::cli
