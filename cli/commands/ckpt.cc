// SPDX-License-Identifier: Apache-2.0
// tandem ckpt: lists and verifies checkpoints, and computes their digests.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/doctor/human_bytes.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/digest.h"

namespace tandem::cli {
namespace {

using Row = std::vector<std::string>;

void PrintTable(const std::vector<Row>& rows) {
  std::vector<size_t> width;
  for (const Row& row : rows) {
    width.resize(std::max(width.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(i + 1 < row.size() ? width[i] - row[i].size() + 2 : 0, ' '));
    }
    std::printf("%s\n", line.c_str());
  }
}

uint64_t TotalBytes(const ps::v1::CheckpointManifest& manifest) {
  uint64_t bytes = 0;
  for (const auto& file : manifest.files()) bytes += file.bytes();
  return bytes;
}

// Returns the metrics that tell how good the model is. The other metrics are the trainer's own state.
std::string Metrics(const ps::v1::CheckpointManifest& manifest) {
  std::vector<std::string> texts;
  for (const char* name : {"valid_auc", "valid_logloss", "train_loss"}) {
    const auto found = manifest.metrics().find(name);
    if (found != manifest.metrics().end()) texts.push_back(absl::StrFormat("%s=%.5g", name, found->second));
  }
  return absl::StrJoin(texts, " ");
}

absl::Status CheckDirectory(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::exists(directory, error)) {
    return absl::NotFoundError(absl::StrCat("there is no directory '", directory, "'"));
  }
  if (!std::filesystem::is_directory(directory, error)) {
    return absl::InvalidArgumentError(absl::StrCat("'", directory, "' is not a directory"));
  }
  return absl::OkStatus();
}

// Returns the checkpoints in `directory`, or the directory itself if it is a checkpoint.
absl::StatusOr<std::vector<ps::CheckpointEntry>> CheckpointsOf(const std::string& directory) {
  TANDEM_RETURN_IF_ERROR(CheckDirectory(directory));
  absl::StatusOr<ps::v1::CheckpointManifest> itself = ps::ReadManifest(directory);
  if (itself.ok()) {
    const uint64_t step = itself->step();
    return std::vector<ps::CheckpointEntry>{{directory, step, *std::move(itself)}};
  }
  if (!absl::IsNotFound(itself.status())) return itself.status();
  TANDEM_ASSIGN_OR_RETURN(std::vector<ps::CheckpointEntry> found, ps::ListCheckpoints(directory));
  if (found.empty()) {
    return absl::NotFoundError(
        absl::StrCat("'", directory, "' holds no checkpoint (a directory with a MANIFEST)"));
  }
  return found;
}

absl::Status List(const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ps::CheckpointEntry> checkpoints, CheckpointsOf(directory));
  std::vector<Row> rows = {{"step", "epoch", "time", "size", "model", "metrics", "path"}};
  for (const ps::CheckpointEntry& entry : checkpoints) {
    const absl::Time time = absl::FromUnixMillis(entry.manifest.unix_millis());
    rows.push_back({absl::StrCat(entry.step), absl::StrCat(entry.manifest.epoch()),
                    absl::FormatTime("%Y-%m-%d %H:%M:%S", time, absl::LocalTimeZone()),
                    HumanBytes(TotalBytes(entry.manifest)), entry.manifest.model(), Metrics(entry.manifest),
                    entry.path});
  }
  PrintTable(rows);
  return absl::OkStatus();
}

absl::Status Digest(const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ps::CheckpointEntry> checkpoints, CheckpointsOf(directory));
  for (const ps::CheckpointEntry& entry : checkpoints) {
    TANDEM_ASSIGN_OR_RETURN(const ps::CheckpointDigest digest, ps::DigestCheckpoint(entry.path));
    std::printf("step %llu\n", static_cast<unsigned long long>(entry.step));
    std::printf("  %016llx  dense\n", static_cast<unsigned long long>(digest.dense));
    for (const ps::TableDigest& table : digest.tables) {
      std::printf("  %016llx  table %s, %llu rows\n", static_cast<unsigned long long>(table.digest),
                  table.table.c_str(), static_cast<unsigned long long>(table.rows));
    }
  }
  return absl::OkStatus();
}

// Verifies every checkpoint, also after a damaged one, and returns the first error. A directory with a
// MANIFEST that cannot be read is damaged, too.
absl::Status Verify(const std::string& directory) {
  TANDEM_RETURN_IF_ERROR(CheckDirectory(directory));
  std::vector<std::string> paths;
  std::error_code error;
  if (std::filesystem::exists(directory + "/MANIFEST", error)) {
    paths.push_back(directory);
  } else {
    for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
      if (std::filesystem::exists(entry.path() / "MANIFEST", error)) paths.push_back(entry.path());
    }
  }
  if (paths.empty()) {
    return absl::NotFoundError(
        absl::StrCat("'", directory, "' holds no checkpoint (a directory with a MANIFEST)"));
  }
  std::sort(paths.begin(), paths.end());
  absl::Status first;
  for (const std::string& path : paths) {
    const absl::Status good = ps::VerifyCheckpoint(path);
    std::printf("%s: %s\n", path.c_str(), good.ok() ? "good" : "DAMAGED");
    first.Update(good);
  }
  std::fflush(stdout);
  return first;
}

}  // namespace

void AddCkpt(CLI::App& app, CommandContext* context) {
  auto directory = std::make_shared<std::string>();
  CLI::App* ckpt = app.add_subcommand("ckpt", "List, check and compare checkpoints");
  ckpt->require_subcommand(1);
  CLI::App* ls = ckpt->add_subcommand("ls", "Step, epoch, time, size, model and metrics of each checkpoint");
  ls->add_option("DIR", *directory, "A job's checkpoint directory, or one checkpoint")->required();
  ls->callback([directory, context] { context->exit_code = Report("ckpt ls", List(*directory)); });
  CLI::App* verify =
      ckpt->add_subcommand("verify", "Read every file of each checkpoint and compare it with the MANIFEST");
  verify->add_option("DIR", *directory, "A job's checkpoint directory, or one checkpoint")->required();
  verify->callback([directory, context] { context->exit_code = Report("ckpt verify", Verify(*directory)); });
  CLI::App* digest =
      ckpt->add_subcommand("digest",
                           "A hash of each checkpoint's tables and dense parameters, the same on any number "
                           "of servers: equal digests, equal models");
  digest->add_option("DIR", *directory, "A job's checkpoint directory, or one checkpoint")->required();
  digest->callback([directory, context] { context->exit_code = Report("ckpt digest", Digest(*directory)); });
}

}  // namespace tandem::cli
