// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/run/rl_report.h"

#include <cmath>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checksummed_file.h"
#include "base/status.h"
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
  const uint64_t own_steps = run.env_steps - run.resumed_at;
  AppendLine(
      &text, "steps",
      absl::StrFormat("%d%s in %.1f s (%.0f/s), %d updates", run.env_steps,
                      run.resumed_at > 0 ? absl::StrCat(", of which ", own_steps) : "", run.seconds,
                      run.seconds > 0 ? static_cast<double>(own_steps) / run.seconds : 0, run.updates));
  std::string episodes = absl::StrCat(run.episodes);
  if (run.recent > 0)
    absl::StrAppendFormat(&episodes, "; the last %d returned %.2f on average", run.recent, run.last_return);
  if (run.stopped_early) absl::StrAppend(&episodes, ", which ended the run (stop.mean_return)");
  AppendLine(&text, "training episodes", episodes);
  if (run.lag.has_value()) {
    AppendLine(&text, "lag of unrolls",
               absl::StrFormat("%.2f versions on average, %d at most; %d of %d unrolls dropped",
                               run.lag->mean(), run.lag->greatest, run.lag->dropped, run.lag->unrolls));
  }
  if (!run.evaluation.returns.empty()) {
    AppendLine(&text, "greedy evaluation",
               absl::StrFormat("%.2f +- %.2f over %d fresh episodes (%.2f to %.2f)", run.evaluation.mean,
                               run.evaluation.deviation, run.evaluation.returns.size(), run.evaluation.least,
                               run.evaluation.greatest));
    if (run.evaluation.unfinished > 0) {
      AppendLine(&text, "",
                 absl::StrFormat("%d had not ended after %d steps (env.max_steps is 0)",
                                 run.evaluation.unfinished, kMostSteps));
    }
  }
  if (!run.failure.ok()) AppendLine(&text, "failed", run.failure.message());
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
               {"resumed_at", run.resumed_at},
               {"episodes", run.episodes},
               {"updates", run.updates},
               {"seconds", run.seconds},
               {"stopped_early", run.stopped_early},
               {"interrupted", run.interrupted},
               {"last_return", run.recent > 0 ? Json(run.last_return) : Json()},
               {"parameters_hash", absl::StrFormat("%016x", run.parameters_hash)},
               {"model", run.model_file},
               {"curve", curve}};
  if (!run.failure.ok()) json["failure"] = run.failure.message();
  for (const auto& [tag, value] : run.figures) json["figures"][tag] = value;
  if (run.lag.has_value()) {
    json["lag"] = {{"mean", run.lag->mean()},
                   {"greatest", run.lag->greatest},
                   {"dropped", run.lag->dropped},
                   {"unrolls", run.lag->unrolls}};
  }
  if (!run.evaluation.returns.empty()) {
    json["evaluation"] = {{"mean", run.evaluation.mean},
                          {"deviation", run.evaluation.deviation},
                          {"min", run.evaluation.least},
                          {"max", run.evaluation.greatest},
                          {"mean_length", run.evaluation.mean_length},
                          {"unfinished", run.evaluation.unfinished},
                          {"returns", run.evaluation.returns}};
  }
  return json;
}

// The evaluations of the runs that have one.
std::vector<double> EvaluationsOf(absl::Span<const RlReport> runs) {
  std::vector<double> means;
  for (const RlReport& run : runs) {
    if (!run.evaluation.returns.empty()) means.push_back(run.evaluation.mean);
  }
  return means;
}

double MeanOf(absl::Span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// A text of another encoding than UTF-8, such as a path, must not end the process.
std::string Dump(const Json& json) {
  return absl::StrCat(json.dump(2, ' ', false, Json::error_handler_t::replace), "\n");
}

}  // namespace

std::string FormatRlReport(absl::Span<const RlReport> runs, size_t asked) {
  if (asked == 1 && runs.size() == 1) return FormatRun(runs[0]);
  std::string text =
      absl::StrFormat("%6s %12s %10s %14s %12s\n", "seed", "steps", "seconds", "last training", "evaluation");
  for (const RlReport& run : runs) {
    const std::string evaluation =
        run.evaluation.returns.empty() ? "-" : absl::StrFormat("%.2f", run.evaluation.mean);
    absl::StrAppendFormat(&text, "%6d %12d %10.1f %14s %12s%s\n", run.seed, run.env_steps, run.seconds,
                          run.recent > 0 ? absl::StrFormat("%.2f", run.last_return) : "-", evaluation,
                          !run.failure.ok() ? "  failed"
                          : run.interrupted ? "  stopped"
                                            : "");
  }
  const std::vector<double> means = EvaluationsOf(runs);
  if (means.empty()) {
    absl::StrAppendFormat(&text, "none of %d seeds was evaluated\n", asked);
    return text;
  }
  const double mean = MeanOf(means);
  double squares = 0;
  for (const double one : means) squares += (one - mean) * (one - mean);
  absl::StrAppendFormat(&text, "mean of %s: %.2f",
                        means.size() == asked ? absl::StrCat(asked, " seeds")
                                              : absl::StrCat(means.size(), " of ", asked, " seeds"),
                        mean);
  if (means.size() > 1)
    absl::StrAppendFormat(&text, " +- %.2f", std::sqrt(squares / static_cast<double>(means.size() - 1)));
  absl::StrAppend(&text, "\n");
  return text;
}

std::string RlReportToJson(absl::Span<const RlReport> runs, size_t asked) {
  if (asked == 1 && runs.size() == 1) return Dump(ToJson(runs[0]));
  Json json = {{"runs", Json::array()}};
  for (const RlReport& run : runs) json["runs"].push_back(ToJson(run));
  const std::vector<double> means = EvaluationsOf(runs);
  if (!means.empty()) json["mean"] = MeanOf(means);
  return Dump(json);
}

absl::Status WriteRlReport(absl::Span<const RlReport> runs, size_t asked, const std::string& path) {
  return WriteFileAtomically(path, RlReportToJson(runs, asked));
}

absl::Status CheckWritable(const std::string& path) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot make the directory of '", path, "': ", error.message()));
  }
  if (std::filesystem::is_directory(path, error))
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' is a directory; give the path of a file"));
  const std::string trial = absl::StrCat(path, ".trial");
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(trial, ""));
  std::filesystem::remove(trial, error);
  return absl::OkStatus();
}

}  // namespace tandem::rl
