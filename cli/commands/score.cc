// SPDX-License-Identifier: Apache-2.0
// tandem eval and tandem predict: score data with the model of a checkpoint.

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/local_path.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "nlohmann/json.hpp"
#include "worker/trainer/scoring.h"

namespace tandem::cli {
namespace {

struct ScoreFlags {
  worker::ScoreOptions options;
  std::string split;
  std::string out;
  bool json = false;
};

// The names of worker::Split, in its order.
const std::vector<std::string> kSplitNames = {"train", "valid", "test"};

std::string NameOf(const worker::Scores& scores) {
  const std::string files = absl::StrJoin(scores.files, ", ");
  if (!scores.split.has_value()) return files;
  return absl::StrCat("the ", kSplitNames[static_cast<size_t>(*scores.split)], " split of ", files);
}

absl::StatusOr<worker::Scores> Score(const ScoreFlags& flags) {
  worker::ScoreOptions options = flags.options;
  for (size_t i = 0; i < kSplitNames.size(); ++i) {
    if (flags.split == kSplitNames[i]) options.split = static_cast<worker::Split>(i);
  }
  TANDEM_ASSIGN_OR_RETURN(worker::Scores scores, worker::ScoreCheckpoint(options));
  if (scores.examples.size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("there is no example in ", NameOf(scores)));
  }
  return scores;
}

// The metrics of one set of scores.
struct Figures {
  std::optional<double> auc;  // unset: only one label occurs
  double logloss = 0;
  uint64_t positives = 0;
  double mean_label = 0, mean_prediction = 0;
  double mean_logloss = 0;  // of predicting the mean label
};

absl::StatusOr<Figures> FiguresOf(const worker::ScoredExamples& examples) {
  Figures figures;
  const absl::StatusOr<double> auc = worker::Auc(examples.labels(), examples.logits());
  if (auc.ok()) figures.auc = *auc;
  if (!auc.ok() && !absl::IsFailedPrecondition(auc.status())) return auc.status();
  figures.logloss = worker::LogLossFromLogits(examples.labels(), examples.logits());
  for (size_t i = 0; i < examples.size(); ++i) {
    figures.positives += examples.labels()[i] > 0.5f ? 1 : 0;
    figures.mean_prediction += worker::Sigmoid(examples.logits()[i]);
  }
  const auto count = static_cast<double>(examples.size());
  figures.mean_prediction /= count;
  figures.mean_label = static_cast<double>(figures.positives) / count;
  figures.mean_logloss = worker::LogLossOfConstant(figures.mean_label, figures.positives, examples.size());
  return figures;
}

absl::Status Eval(const ScoreFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const worker::Scores scores, Score(flags));
  TANDEM_ASSIGN_OR_RETURN(const Figures figures, FiguresOf(scores.examples));
  if (flags.json) {
    const nlohmann::ordered_json json = {
        {"checkpoint", scores.checkpoint},
        {"job", scores.job},
        {"model", scores.model},
        {"step", scores.step},
        {"epoch", scores.epoch},
        {"files", scores.files},
        {"split", scores.split.has_value() ? kSplitNames[static_cast<size_t>(*scores.split)] : "all"},
        {"examples", scores.examples.size()},
        {"positives", figures.positives},
        {"malformed_lines", scores.malformed_lines},
        {"auc", figures.auc.has_value() ? nlohmann::ordered_json(*figures.auc) : nlohmann::ordered_json()},
        {"logloss", figures.logloss},
        {"mean_prediction", figures.mean_prediction},
        {"mean_label", figures.mean_label},
        {"mean_logloss", figures.mean_logloss}};
    std::printf("%s\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return absl::OkStatus();
  }
  std::printf("%s: %s, %s, epoch %llu\n", scores.checkpoint.c_str(), scores.job.c_str(), scores.model.c_str(),
              static_cast<unsigned long long>(scores.epoch));
  std::printf("  %-16s %zu in %s\n", "examples", scores.examples.size(), NameOf(scores).c_str());
  if (figures.auc.has_value()) {
    std::printf("  %-16s %.6f\n", "AUC", *figures.auc);
  } else {
    std::printf("  %-16s n/a: all labels are %d\n", "AUC", figures.positives > 0 ? 1 : 0);
  }
  std::printf("  %-16s %.6f (%.6f for predicting the mean label)\n", "logloss", figures.logloss,
              figures.mean_logloss);
  std::printf("  %-16s %.6f (the mean label is %.6f)\n", "mean prediction", figures.mean_prediction,
              figures.mean_label);
  if (scores.malformed_lines > 0) {
    std::printf("  %-16s %llu, left out (see the warnings above)\n", "malformed lines",
                static_cast<unsigned long long>(scores.malformed_lines));
  }
  return absl::OkStatus();
}

// Appends a field to a line of CSV, quoted if it must be (RFC 4180).
void AppendField(absl::string_view field, std::string* line) {
  if (field.find_first_of(",\"\r\n") == absl::string_view::npos) {
    absl::StrAppend(line, field, ",");
  } else {
    absl::StrAppend(line, "\"", absl::StrReplaceAll(field, {{"\"", "\"\""}}), "\",");
  }
}

// Writes the scores to `path` + ".partial" and renames the file at the end; "-" is stdout.
absl::Status WriteScores(const worker::Scores& scores, const std::vector<std::string>& keep,
                         const std::string& path) {
  const bool to_stdout = path == "-";
  const std::string partial = path + ".partial";
  const auto failed = [&](absl::string_view what) {
    const absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat(what, " '", path, "'"));
    if (!to_stdout) std::remove(partial.c_str());
    return status;
  };
  std::FILE* const file = to_stdout ? stdout : std::fopen(partial.c_str(), "wb");
  if (file == nullptr) return failed("cannot create");
  std::string line;
  for (const std::string& column : keep) AppendField(column, &line);
  std::fputs(line.c_str(), file);
  std::fputs(scores.labelled ? "label,probability\n" : "probability\n", file);
  for (size_t i = 0; i < scores.examples.size(); ++i) {
    line.clear();
    for (size_t k = 0; k < keep.size(); ++k) AppendField(scores.kept[i * keep.size() + k], &line);
    std::fwrite(line.data(), 1, line.size(), file);
    const float label = scores.examples.labels()[i];
    if (scores.labelled) std::fputs(std::isnan(label) ? "," : label > 0.5f ? "1," : "0,", file);
    std::fprintf(file, "%.9g\n", worker::Sigmoid(scores.examples.logits()[i]));
  }
  const bool written = std::ferror(file) == 0 && std::fflush(file) == 0;
  if (to_stdout) return written ? absl::OkStatus() : failed("cannot write");
  if ((std::fclose(file) != 0) || !written) return failed("cannot write");
  return std::rename(partial.c_str(), path.c_str()) == 0 ? absl::OkStatus() : failed("cannot create");
}

absl::Status Predict(ScoreFlags flags) {
  // Row i of the output is example i of the input, so none may be left out.
  flags.options.max_malformed = 0;
  flags.options.label_is_optional = true;
  TANDEM_ASSIGN_OR_RETURN(const worker::Scores scores, Score(flags));
  TANDEM_RETURN_IF_ERROR(WriteScores(scores, flags.options.keep, flags.out));
  if (flags.out != "-") {
    std::printf("%s: %zu scores of %s by %s\n", flags.out.c_str(), scores.examples.size(),
                NameOf(scores).c_str(), scores.checkpoint.c_str());
  }
  return absl::OkStatus();
}

void AddScoreFlags(CLI::App* command, ScoreFlags* flags) {
  worker::ScoreOptions* options = &flags->options;
  LocalPath(command->add_option("CKPT", options->checkpoint,
                                "A checkpoint, or a job's checkpoint directory: then that of the best epoch"))
      ->required();
  LocalPath(command->add_option(
                "--data", options->files,
                "Files to read instead of the job's, in the job's format; a pattern such as 'day_*.csv' "
                "stands for the files that match it (repeatable)"))
      ->allow_extra_args(false);
  command
      ->add_option("--split", flags->split,
                   "The part to read, cut as in training: train, valid or test [all of --data; without "
                   "--data: test]")
      ->check(CLI::IsMember(kSplitNames));
  LocalPath(command->add_option("--job", options->job_file,
                                "A job file to use instead of the one in the checkpoint"));
  command->add_option("--set", options->set, "Change a field of the job: dotted.path=value (repeatable)")
      ->allow_extra_args(false);
}

}  // namespace

void AddEval(CLI::App& app, CommandContext* context) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* command = app.add_subcommand(
      "eval", "AUC and logloss of a checkpoint's model on other data; needs no running job");
  AddScoreFlags(command, flags.get());
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags, context] { context->exit_code = Report("eval", Eval(*flags)); });
}

void AddPredict(CLI::App& app, CommandContext* context) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* command = app.add_subcommand(
      "predict", "Score data with a checkpoint's model: one probability for each example, in order");
  AddScoreFlags(command, flags.get());
  LocalPath(command->add_option(
                "-o,--output", flags->out,
                "The CSV file to write: label (where the data has one) and probability; '-': stdout"))
      ->required();
  command
      ->add_option("--keep", flags->options.keep,
                   "Columns of the data to copy in front of the score, such as user,item, to join on")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->callback([flags, context] { context->exit_code = Report("predict", Predict(*flags)); });
}

}  // namespace tandem::cli
