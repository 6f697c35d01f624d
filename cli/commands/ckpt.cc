// SPDX-License-Identifier: Apache-2.0
// tandem ckpt: lists, shows, verifies, compacts and exports checkpoints, and computes their digests.

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
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/checksummed_file.h"
#include "base/local_path.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/doctor/human_bytes.h"
#include "nlohmann/json.hpp"
#include "ps/checkpoint/chain.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/digest.h"
#include "ps/checkpoint/export.h"
#include "ps/checkpoint/format.h"

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
               {"bytes", TotalBytes(manifest)},
               {"base", manifest.base()}};
  json["metrics"] = Json::object();
  for (const auto& [name, value] :
       std::map<std::string, double>(manifest.metrics().begin(), manifest.metrics().end())) {
    json["metrics"][name] = value;
  }
  json["files"] = Json::array();
  for (const ps::v1::CheckpointFile& file : manifest.files()) {
    json["files"].push_back(
        {{"name", file.name()}, {"bytes", file.bytes()}, {"crc32", file.crc32()}, {"base", file.base()}});
  }
  return json;
}

// Returns the step in a checkpoint's name, for tables: "1000" of "step-000000001000"; "-" of an empty name.
std::string StepOf(absl::string_view name) {
  uint64_t step;
  return absl::ConsumePrefix(&name, "step-") && absl::SimpleAtoi(name, &step) ? absl::StrCat(step) : "-";
}

absl::Status List(const std::string& directory, bool as_json) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ps::CheckpointEntry> checkpoints, CheckpointsOf(directory));
  if (as_json) {
    Json json = Json::array();
    for (const ps::CheckpointEntry& entry : checkpoints) json.push_back(ToJson(entry));
    PrintJson(json);
    return absl::OkStatus();
  }
  const bool deltas =
      std::any_of(checkpoints.begin(), checkpoints.end(),
                  [](const ps::CheckpointEntry& entry) { return !entry.manifest.base().empty(); });
  std::vector<Row> rows = {{"step", "epoch", "time", "size", "model", "metrics", "path"}};
  if (deltas) rows[0].insert(rows[0].begin() + 4, "builds on");
  for (const ps::CheckpointEntry& entry : checkpoints) {
    const absl::Time time = absl::FromUnixMillis(entry.manifest.unix_millis());
    rows.push_back({absl::StrCat(entry.step), absl::StrCat(entry.manifest.epoch()),
                    absl::FormatTime("%Y-%m-%d %H:%M:%S", time, absl::LocalTimeZone()),
                    HumanBytes(TotalBytes(entry.manifest)), entry.manifest.model(), Metrics(entry.manifest),
                    entry.path});
    if (deltas) rows.back().insert(rows.back().begin() + 4, StepOf(entry.manifest.base()));
  }
  PrintTable(rows);
  return absl::OkStatus();
}

// Prints what one checkpoint holds, and the chain that it needs.
absl::Status Show(const std::string& directory, bool as_json) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ps::CheckpointEntry> found, CheckpointsOf(directory));
  const ps::CheckpointEntry& entry = found.back();
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ps::CheckpointEntry> chain, ps::ChainOf(entry.path));
  Json json = ToJson(entry);
  json["run"] = entry.manifest.run_id();
  json["chain"] = Json::array();
  uint64_t bytes = 0;
  for (const ps::CheckpointEntry& one : chain) {
    json["chain"].push_back({{"path", one.path}, {"step", one.step}, {"bytes", TotalBytes(one.manifest)}});
    bytes += TotalBytes(one.manifest);
  }
  std::vector<Row> files = {{"file", "table", "server", "rows", "removed", "clock", "size", "builds on"}};
  json["files"].clear();
  for (const ps::v1::CheckpointFile& file : entry.manifest.files()) {
    Json one = {
        {"name", file.name()}, {"bytes", file.bytes()}, {"crc32", file.crc32()}, {"base", file.base()}};
    if (!absl::EndsWith(file.name(), ps::kTableFileSuffix)) {
      files.push_back({file.name(), "", "", "", "", "", HumanBytes(file.bytes()), ""});
      json["files"].push_back(std::move(one));
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ps::TableFileReader> reader,
                            ps::TableFileReader::Open(absl::StrCat(entry.path, "/", file.name())));
    const ps::v1::TableFileHeader& header = reader->header();
    uint64_t rows = 0, removed = 0;
    for (const ps::v1::BucketIndex& bucket : reader->footer().buckets()) {
      rows += bucket.rows();
      removed += bucket.removed();
    }
    files.push_back({file.name(), header.config().name(),
                     absl::StrCat(header.server_index(), " of ", header.num_servers()), absl::StrCat(rows),
                     absl::StrCat(removed), absl::StrCat(header.version()), HumanBytes(file.bytes()),
                     StepOf(file.base())});
    one.update({{"table", header.config().name()},
                {"server", header.server_index()},
                {"servers", header.num_servers()},
                {"rows", rows},
                {"removed", removed},
                {"clock", header.version()}});
    json["files"].push_back(std::move(one));
  }
  if (as_json) {
    PrintJson(json);
    return absl::OkStatus();
  }
  std::printf("%s\n  job %s, model %s, step %llu, epoch %llu, run %s\n", entry.path.c_str(),
              entry.manifest.job_name().c_str(), entry.manifest.model().c_str(),
              static_cast<unsigned long long>(entry.step),
              static_cast<unsigned long long>(entry.manifest.epoch()),
              entry.manifest.run_id().empty() ? "-" : entry.manifest.run_id().c_str());
  if (chain.size() > 1) {
    std::vector<std::string> steps;
    for (const ps::CheckpointEntry& one : chain) steps.push_back(absl::StrCat(one.step));
    std::printf("  %zu checkpoints are needed, %s in all: steps %s\n", chain.size(),
                HumanBytes(bytes).c_str(), absl::StrJoin(steps, ", ").c_str());
  }
  PrintTable(files);
  return absl::OkStatus();
}

absl::Status Compact(const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ps::CheckpointEntry> found, CheckpointsOf(directory));
  const std::string& path = found.back().path;
  const uint64_t before = TotalBytes(found.back().manifest);
  TANDEM_ASSIGN_OR_RETURN(const bool compacted, ps::CompactCheckpoint(path));
  if (!compacted) {
    std::printf("%s: complete already\n", path.c_str());
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(const ps::v1::CheckpointManifest manifest, ps::ReadManifest(path));
  std::printf("%s: complete, %s instead of %s; it needs no other checkpoint\n", path.c_str(),
              HumanBytes(TotalBytes(manifest)).c_str(), HumanBytes(before).c_str());
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
  // A checkpoint is as good as those on which it builds, which are verified once.
  std::map<std::string, absl::Status> verified;
  const auto verify = [&](const std::string& path) {
    const absl::StatusOr<std::vector<ps::CheckpointEntry>> chain = ps::ChainOf(path);
    absl::Status good = chain.status();
    for (size_t i = 0; chain.ok() && i < chain->size(); ++i) {
      const std::string& one = (*chain)[i].path;
      std::error_code ignored;
      const auto [known, is_new] =
          verified.emplace(std::filesystem::weakly_canonical(one, ignored), absl::OkStatus());
      if (is_new) known->second = ps::VerifyCheckpoint(one);
      good.Update(known->second);
    }
    good.Update(ps::VerifyLinks(path));
    return good;
  };
  for (const std::string& path : paths) {
    const absl::Status good = verify(path);
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
  TANDEM_ASSIGN_OR_RETURN(one.checkpoint, ps::BestCheckpoint(flags.checkpoint));
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
  CLI::App* command =
      ckpt->add_subcommand("export", "Write tables and dense parameters as files that NumPy and others read");
  LocalPath(
      command->add_option(
          "CKPT", flags->checkpoint,
          "A checkpoint, or a job's checkpoint directory: then that of the best epoch, as for tandem eval"))
      ->required();
  LocalPath(command->add_option("-o,--output", flags->out, "The directory to write to; made if needed"))
      ->required();
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
  CLI::App* ckpt = app.add_subcommand("ckpt", "List, show, check, compare, compact and export checkpoints");
  ckpt->require_subcommand(1);
  CLI::App* ls = ckpt->add_subcommand("ls", "Step, epoch, time, size, model and metrics of each checkpoint");
  LocalPath(ls->add_option("DIR", *directory, "A job's checkpoint directory, or one checkpoint"))->required();
  ls->add_flag("--json", *json, "Print a JSON list with an object for each checkpoint");
  ls->callback(
      [directory, json, context] { context->exit_code = Report("ckpt ls", List(*directory, *json)); });
  CLI::App* verify =
      ckpt->add_subcommand("verify", "Read every file of each checkpoint and compare it with the MANIFEST");
  LocalPath(verify->add_option("DIR", *directory, "A job's checkpoint directory, or one checkpoint"))
      ->required();
  verify->add_flag("--json", *json, "Print a JSON list with an object for each checkpoint");
  verify->callback(
      [directory, json, context] { context->exit_code = Report("ckpt verify", Verify(*directory, *json)); });
  CLI::App* digest =
      ckpt->add_subcommand("digest",
                           "A hash of each checkpoint's tables and dense parameters, the same on any number "
                           "of servers: equal digests, equal models. Of PyTorch's part a hash of each file, "
                           "the same on the same number of ranks");
  LocalPath(digest->add_option("DIR", *directory, "A job's checkpoint directory, or one checkpoint"))
      ->required();
  digest->add_flag("--json", *json, "Print a JSON list with an object for each checkpoint");
  digest->callback(
      [directory, json, context] { context->exit_code = Report("ckpt digest", Digest(*directory, *json)); });
  CLI::App* show =
      ckpt->add_subcommand("show", "The files and tables of a checkpoint, and those on which it builds");
  LocalPath(show->add_option("CKPT", *directory, "A checkpoint, or a directory of them: then the newest"))
      ->required();
  show->add_flag("--json", *json, "Print a JSON object");
  show->callback(
      [directory, json, context] { context->exit_code = Report("ckpt show", Show(*directory, *json)); });
  CLI::App* compact = ckpt->add_subcommand("compact",
                                           "Make a checkpoint that builds on others complete, in place; "
                                           "those before it are then not needed for it");
  LocalPath(compact->add_option("CKPT", *directory, "A checkpoint, or a directory of them: then the newest"))
      ->required();
  compact->callback(
      [directory, context] { context->exit_code = Report("ckpt compact", Compact(*directory)); });
  AddExport(ckpt, context);
}

}  // namespace tandem::cli
