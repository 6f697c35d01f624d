// SPDX-License-Identifier: Apache-2.0
// tandem ckpt: lists, verifies and exports checkpoints, and computes their digests.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/checksummed_file.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/doctor/human_bytes.h"
#include "nlohmann/json.hpp"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/digest.h"
#include "ps/checkpoint/export.h"

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

using Json = nlohmann::ordered_json;

void PrintJson(const Json& json) {
  std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

Json ToJson(const ps::CheckpointEntry& entry) {
  const ps::v1::CheckpointManifest& manifest = entry.manifest;
  const absl::Time time = absl::FromUnixMillis(manifest.unix_millis());
  Json json = {{"path", entry.path},
               {"job", manifest.job_name()},
               {"model", manifest.model()},
               {"step", entry.step},
               {"epoch", manifest.epoch()},
               {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone())},
               {"bytes", TotalBytes(manifest)}};
  json["metrics"] = Json::object();
  for (const auto& [name, value] : std::map<std::string, double>(manifest.metrics().begin(),
                                                                 manifest.metrics().end())) {
    json["metrics"][name] = value;
  }
  json["files"] = Json::array();
  for (const ps::v1::CheckpointFile& file : manifest.files()) {
    json["files"].push_back({{"name", file.name()}, {"bytes", file.bytes()}, {"crc32", file.crc32()}});
  }
  return json;
}

absl::Status List(const std::string& directory, bool as_json) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ps::CheckpointEntry> checkpoints, CheckpointsOf(directory));
  if (as_json) {
    Json json = Json::array();
    for (const ps::CheckpointEntry& entry : checkpoints) json.push_back(ToJson(entry));
    PrintJson(json);
    return absl::OkStatus();
  }
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

std::string Hex(uint64_t digest) { return absl::StrFormat("%016x", digest); }

absl::Status Digest(const std::string& directory, bool as_json) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ps::CheckpointEntry> checkpoints, CheckpointsOf(directory));
  Json json = Json::array();
  for (const ps::CheckpointEntry& entry : checkpoints) {
    TANDEM_ASSIGN_OR_RETURN(const ps::CheckpointDigest digest, ps::DigestCheckpoint(entry.path));
    if (as_json) {
      Json tables = Json::array();
      for (const ps::TableDigest& table : digest.tables) {
        tables.push_back({{"table", table.table}, {"rows", table.rows}, {"digest", Hex(table.digest)}});
      }
      Json torch = Json::array();
      for (const ps::TorchFileDigest& file : digest.torch) {
        torch.push_back({{"file", file.name}, {"bytes", file.bytes}, {"digest", Hex(file.digest)}});
      }
      json.push_back({{"path", entry.path},
                      {"step", entry.step},
                      {"dense", Hex(digest.dense)},
                      {"tables", tables},
                      {"torch", torch}});
      continue;
    }
    std::printf("step %llu\n", static_cast<unsigned long long>(entry.step));
    std::printf("  %016llx  dense\n", static_cast<unsigned long long>(digest.dense));
    for (const ps::TableDigest& table : digest.tables) {
      std::printf("  %016llx  table %s, %llu rows\n", static_cast<unsigned long long>(table.digest),
                  table.table.c_str(), static_cast<unsigned long long>(table.rows));
    }
    for (const ps::TorchFileDigest& file : digest.torch) {
      std::printf("  %016llx  torch %s, %llu bytes\n", static_cast<unsigned long long>(file.digest),
                  file.name.c_str(), static_cast<unsigned long long>(file.bytes));
    }
  }
  if (as_json) PrintJson(json);
  return absl::OkStatus();
}

// Verifies every checkpoint, also after a damaged one, and returns the first error. A directory with a
// MANIFEST that cannot be read is damaged, too.
absl::Status Verify(const std::string& directory, bool as_json) {
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
  Json json = Json::array();
  for (const std::string& path : paths) {
    const absl::Status good = ps::VerifyCheckpoint(path);
    if (as_json) {
      json.push_back({{"path", path}, {"good", good.ok()}, {"error", std::string(good.message())}});
    } else {
      std::printf("%s: %s\n", path.c_str(), good.ok() ? "good" : "DAMAGED");
    }
    first.Update(good);
  }
  if (as_json) PrintJson(json);
  std::fflush(stdout);
  return first;
}

struct ExportFlags {
  std::string checkpoint, out, format = "npy";
  bool optimizer_state = false;
};

// Writes export.json and job.yaml, which say what the other files are.
absl::Status WriteDescription(const ps::Exported& exported, const ExportFlags& flags) {
  const ps::v1::CheckpointManifest& manifest = exported.manifest;
  Json json = {{"checkpoint", flags.checkpoint},
               {"job", manifest.job_name()},
               {"model", manifest.model()},
               {"step", manifest.step()},
               {"epoch", manifest.epoch()}};
  json["tables"] = Json::array();
  for (const ps::ExportedTable& table : exported.tables) {
    json["tables"].push_back({{"name", table.name},
                              {"rows", table.rows},
                              {"dim", table.dim},
                              {"optimizer", table.config.optimizer().kind()},
                              {"optimizer_state", table.state},
                              {"files", table.files}});
  }
  json["dense"] = {{"file", "dense.npz"}, {"arrays", exported.blocks}};
  json["inputs"] = Json::array();
  for (const ps::v1::DenseInput& input : manifest.input().dense()) {
    json["inputs"].push_back({{"column", input.column()}, {"mean", input.mean()}, {"scale", input.scale()}});
  }
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(flags.out + "/job.yaml", manifest.job_text()));
  return WriteFileAtomically(flags.out + "/export.json",
                             json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

absl::Status Export(const ExportFlags& flags) {
  TANDEM_RETURN_IF_ERROR(CheckDirectory(flags.checkpoint));
  ExportFlags one = flags;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ps::CheckpointEntry> found, CheckpointsOf(flags.checkpoint));
  one.checkpoint = found.back().path;
  TANDEM_ASSIGN_OR_RETURN(
      const ps::Exported exported,
      ps::ExportCheckpoint(one.checkpoint, one.out,
                           {.format = one.format == "csv" ? ps::ExportFormat::kCsv : ps::ExportFormat::kNpy,
                            .optimizer_state = one.optimizer_state}));
  TANDEM_RETURN_IF_ERROR(WriteDescription(exported, one));
  std::printf("%s: %s\n", one.out.c_str(), one.checkpoint.c_str());
  for (const ps::ExportedTable& table : exported.tables) {
    std::printf("  table %s: %llu rows of %u floats in %s\n", table.name.c_str(),
                static_cast<unsigned long long>(table.rows), table.dim,
                absl::StrJoin(table.files, ", ").c_str());
  }
  std::printf("  dense parameters: %zu arrays in dense.npz\n  description: export.json, job.yaml\n",
              exported.blocks.size());
  return absl::OkStatus();
}

void AddExport(CLI::App* ckpt, CommandContext* context) {
  auto flags = std::make_shared<ExportFlags>();
  CLI::App* command = ckpt->add_subcommand(
      "export", "Write tables and dense parameters as files that NumPy and others read");
  command->add_option("CKPT", flags->checkpoint, "A checkpoint, or a directory of them: then the newest")
      ->required();
  command->add_option("-o,--output", flags->out, "The directory to write to; made if needed")->required();
  command->add_option("--format", flags->format, "Of the tables: npy (ids and rows) or csv")
      ->check(CLI::IsMember({"npy", "csv"}))
      ->capture_default_str();
  command->add_flag("--optimizer-state", flags->optimizer_state,
                    "Also the optimizer's state, of rows and of dense parameters");
  command->callback([flags, context] { context->exit_code = Report("ckpt export", Export(*flags)); });
}

}  // namespace

void AddCkpt(CLI::App& app, CommandContext* context) {
  auto directory = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  CLI::App* ckpt = app.add_subcommand("ckpt", "List, check, compare and export checkpoints");
  ckpt->require_subcommand(1);
  CLI::App* ls = ckpt->add_subcommand("ls", "Step, epoch, time, size, model and metrics of each checkpoint");
  ls->add_option("DIR", *directory, "A job's checkpoint directory, or one checkpoint")->required();
  ls->add_flag("--json", *json, "Print a JSON list with an object for each checkpoint");
  ls->callback(
      [directory, json, context] { context->exit_code = Report("ckpt ls", List(*directory, *json)); });
  CLI::App* verify =
      ckpt->add_subcommand("verify", "Read every file of each checkpoint and compare it with the MANIFEST");
  verify->add_option("DIR", *directory, "A job's checkpoint directory, or one checkpoint")->required();
  verify->add_flag("--json", *json, "Print a JSON list with an object for each checkpoint");
  verify->callback(
      [directory, json, context] { context->exit_code = Report("ckpt verify", Verify(*directory, *json)); });
  CLI::App* digest =
      ckpt->add_subcommand("digest",
                           "A hash of each checkpoint's tables and dense parameters, the same on any number "
                           "of servers: equal digests, equal models. Of PyTorch's part a hash of each file, "
                           "the same on the same number of ranks");
  digest->add_option("DIR", *directory, "A job's checkpoint directory, or one checkpoint")->required();
  digest->add_flag("--json", *json, "Print a JSON list with an object for each checkpoint");
  digest->callback(
      [directory, json, context] { context->exit_code = Report("ckpt digest", Digest(*directory, *json)); });
  AddExport(ckpt, context);
}

}  // namespace tandem::cli
