// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/run/rl_report.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checksummed_file.h"
#include "nlohmann/json.hpp"

namespace tandem::rl {
namespace {

using Json = nlohmann::ordered_json;

void AppendLine(std::string* text, absl::string_view name, absl::string_view value) {
  absl::StrAppendFormat(text, "  %-22s %s\n", name, value);
}

std::string FormatRun(const RlReport& run) {
  std::string text =
      absl::StrFormat("%s: %s on %s, seed %d\n", run.job, run.algorithm, run.environment, run.seed);
  AppendLine(
      &text, "steps",
      absl::StrFormat("%d in %.1f s (%.0f/s), %d updates", run.env_steps, run.seconds,
                      run.seconds > 0 ? static_cast<double>(run.env_steps) / run.seconds : 0, run.updates));
  AppendLine(&text, "training episodes",
             absl::StrFormat("%d; the last 100 returned %.2f on average%s", run.episodes, run.last_return,
                             run.stopped_early ? ", which ended the run (stop.mean_return)" : ""));
  if (!run.evaluation.returns.empty()) {
    AppendLine(&text, "greedy evaluation",
               absl::StrFormat("%.2f +- %.2f over %d fresh episodes (%.2f to %.2f)", run.evaluation.mean,
                               run.evaluation.deviation, run.evaluation.returns.size(), run.evaluation.least,
                               run.evaluation.greatest));
  }
  AppendLine(&text, "parameters", absl::StrFormat("hash %016x", run.parameters_hash));
  if (!run.model_file.empty()) AppendLine(&text, "model", run.model_file);
  return text;
}

Json ToJson(const RlReport& run) {
  Json curve = Json::array();
  for (const CurvePoint& point : run.curve) {
    curve.push_back(
        {{"env_steps", point.env_steps}, {"episodes", point.episodes}, {"mean_return", point.mean_return}});
  }
  Json json = {{"job", run.job},
               {"environment", run.environment},
               {"algorithm", run.algorithm},
               {"seed", run.seed},
               {"env_steps", run.env_steps},
               {"episodes", run.episodes},
               {"updates", run.updates},
               {"seconds", run.seconds},
               {"stopped_early", run.stopped_early},
               {"interrupted", run.interrupted},
               {"last_return", run.last_return},
               {"parameters_hash", absl::StrFormat("%016x", run.parameters_hash)},
               {"model", run.model_file},
               {"curve", curve}};
  if (!run.evaluation.returns.empty()) {
    json["evaluation"] = {{"mean", run.evaluation.mean},
                          {"deviation", run.evaluation.deviation},
                          {"min", run.evaluation.least},
                          {"max", run.evaluation.greatest},
                          {"mean_length", run.evaluation.mean_length},
                          {"returns", run.evaluation.returns}};
  }
  return json;
}

}  // namespace

std::string FormatRlReport(absl::Span<const RlReport> runs) {
  if (runs.size() == 1) return FormatRun(runs[0]);
  std::string text =
      absl::StrFormat("%6s %12s %10s %14s %12s\n", "seed", "steps", "seconds", "last training", "evaluation");
  double sum = 0, squares = 0;
  for (const RlReport& run : runs) {
    absl::StrAppendFormat(&text, "%6d %12d %10.1f %14.2f %12.2f\n", run.seed, run.env_steps, run.seconds,
                          run.last_return, run.evaluation.mean);
    sum += run.evaluation.mean;
  }
  if (runs.empty()) return text;
  const double mean = sum / static_cast<double>(runs.size());
  for (const RlReport& run : runs) squares += (run.evaluation.mean - mean) * (run.evaluation.mean - mean);
  absl::StrAppendFormat(&text, "mean of %d seeds: %.2f +- %.2f\n", runs.size(), mean,
                        std::sqrt(squares / static_cast<double>(runs.size() - 1)));
  return text;
}

std::string RlReportToJson(absl::Span<const RlReport> runs) {
  if (runs.size() == 1) return absl::StrCat(ToJson(runs[0]).dump(2), "\n");
  Json json = {{"runs", Json::array()}};
  double sum = 0;
  for (const RlReport& run : runs) {
    json["runs"].push_back(ToJson(run));
    sum += run.evaluation.mean;
  }
  if (!runs.empty()) json["mean"] = sum / static_cast<double>(runs.size());
  return absl::StrCat(json.dump(2), "\n");
}

absl::Status WriteRlReport(absl::Span<const RlReport> runs, const std::string& path) {
  return WriteFileAtomically(path, RlReportToJson(runs));
}

}  // namespace tandem::rl
