// SPDX-License-Identifier: Apache-2.0
// `tandem bench checkpoint`: saves a table of many rows complete, then what has changed since, and restores
// both.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/local_path.h"
#include "base/number_flag.h"
#include "base/random.h"
#include "base/status.h"
#include "bench/suites/commands.h"
#include "bench/suites/own_processes.h"
#include "bench/suites/row_bench.h"
#include "launcher/host/machine.h"
#include "nlohmann/json.hpp"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/client/client.h"
#include "ps/server/parameter_server.h"
#include "rpc/transport/loopback.h"

namespace tandem::bench {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct CheckpointBenchOptions {
  RowBenchOptions table{.batch = 65536};
  double touched = 0.01;  // share of the rows that change between the two checkpoints
  std::string directory;
  bool json = false;
};

struct CheckpointBenchResult {
  uint64_t touched_rows = 0;
  uint64_t full_bytes = 0, delta_bytes = 0;
  double full_s = 0, delta_s = 0, restore_s = 0;
  uint64_t table_bytes = 0;          // of memory
  uint64_t most_resident_bytes = 0;  // of this process, until both checkpoints were saved
};

uint64_t IdOf(uint64_t i) { return Mix64(i); }

uint64_t MostResidentBytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

// A server in this process, and its client.
struct Job {
  std::unique_ptr<ps::ParameterServer> server;
  std::unique_ptr<ps::Client> client;
};

absl::StatusOr<Job> StartJob(const v1::TableConfig& config) {
  constexpr absl::Duration kTimeout = absl::Hours(1);
  Job job;
  job.server = std::make_unique<ps::ParameterServer>(ps::ParameterServerOptions());
  std::vector<std::unique_ptr<rpc::Channel>> channels;
  channels.push_back(rpc::ConnectLoopback(
      std::make_shared<const std::vector<rpc::Service>>(std::vector<rpc::Service>{job.server->service()})));
  TANDEM_ASSIGN_OR_RETURN(
      job.client,
      ps::Client::Connect(std::move(channels), {.timeout = kTimeout, .checkpoint_timeout = kTimeout}));
  TANDEM_RETURN_IF_ERROR(job.client->CreateTable(config));
  return job;
}

// Saves and commits the checkpoint of `step` as `save` says. Returns the bytes of its files.
absl::StatusOr<uint64_t> Save(ps::Client& client, const std::string& root, uint64_t step,
                              const ps::SaveOptions& save) {
  TANDEM_ASSIGN_OR_RETURN(const std::string unfinished, ps::BeginCheckpoint(root, step));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<v1::SavedFile> written, client.SaveCheckpoint(unfinished, save));
  v1::CheckpointManifest manifest;
  manifest.set_step(step);
  TANDEM_ASSIGN_OR_RETURN(const std::string path, ps::CommitCheckpoint(unfinished, manifest, written));
  TANDEM_ASSIGN_OR_RETURN(manifest, ps::ReadManifest(path));
  uint64_t bytes = 0;
  for (const v1::CheckpointFile& file : manifest.files()) bytes += file.bytes();
  return bytes;
}

absl::StatusOr<CheckpointBenchResult> Measure(const CheckpointBenchOptions& options) {
  const RowBenchOptions& table = options.table;
  TANDEM_ASSIGN_OR_RETURN(const v1::TableConfig config, TableOf(table));
  const double most =
      static_cast<double>(table.rows) * (static_cast<double>(PayloadBytes(config)) + 24) * 1.2;
  if (most > 1e18) return absl::ResourceExhaustedError("no machine has memory for so many --rows");
  TANDEM_RETURN_IF_ERROR(
      CheckMemoryFor(static_cast<uint64_t>(most) + (uint64_t{1} << 30), *launcher::ThisMachine()));
  CheckpointBenchResult result;
  {
    TANDEM_ASSIGN_OR_RETURN(const Job job, StartJob(config));
    std::vector<uint64_t> ids;
    std::vector<float> rows(table.batch * table.dim);
    for (uint64_t first = 0; first < table.rows; first += ids.size()) {
      ids.resize(std::min(table.batch, table.rows - first));
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = IdOf(first + i);
      TANDEM_RETURN_IF_ERROR(job.client->Pull(0, /*read_only=*/false, {{"rows", ids, rows.data()}}).status());
    }
    // An update, as between any two checkpoints of a job. Rows that were made since the last update count as
    // changed in the next increment.
    rows.assign(rows.size(), 0.001f);
    ids.assign(1, IdOf(0));
    TANDEM_RETURN_IF_ERROR(job.client->Push(0, {{.table = "rows", .ids = ids, .gradients = rows.data()}}));
    Clock::time_point start = Clock::now();
    TANDEM_ASSIGN_OR_RETURN(result.full_bytes,
                            Save(*job.client, options.directory, 1, {.name = ps::CheckpointName(1)}));
    result.full_s = Since(start);

    // Every 1 / touched-th row: those of one draw are distinct, and their places in the table are random.
    result.touched_rows = static_cast<uint64_t>(static_cast<double>(table.rows) * options.touched);
    for (uint64_t first = 0; first < result.touched_rows; first += ids.size()) {
      ids.resize(std::min(table.batch, result.touched_rows - first));
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = IdOf((first + i) * table.rows / result.touched_rows);
      ps::PushPart part{.table = "rows", .ids = ids, .gradients = rows.data()};
      TANDEM_RETURN_IF_ERROR(job.client->Push(1 + first / table.batch, {part}));
    }
    start = Clock::now();
    TANDEM_ASSIGN_OR_RETURN(result.delta_bytes,
                            Save(*job.client, options.directory, 2,
                                 {.name = ps::CheckpointName(2), .base = ps::CheckpointName(1)}));
    result.delta_s = Since(start);
    TANDEM_ASSIGN_OR_RETURN(const std::vector<v1::TableInfo> tables, job.client->ListTables());
    for (const v1::TableInfo& info : tables) result.table_bytes += info.statistics().bytes();
    result.most_resident_bytes = MostResidentBytes();
  }
  TANDEM_ASSIGN_OR_RETURN(const Job job, StartJob(config));
  TANDEM_ASSIGN_OR_RETURN(const std::string newest, ps::LatestCheckpoint(options.directory));
  const Clock::time_point start = Clock::now();
  TANDEM_RETURN_IF_ERROR(job.client->LoadCheckpoint(newest));
  result.restore_s = Since(start);
  TANDEM_ASSIGN_OR_RETURN(const std::vector<v1::TableInfo> tables, job.client->ListTables());
  for (const v1::TableInfo& info : tables) {
    if (info.statistics().rows() == table.rows) continue;
    return absl::InternalError(absl::StrCat(info.statistics().rows(), " rows were restored of ", table.rows));
  }
  return result;
}

void PrintCheckpointText(const CheckpointBenchOptions& options, const CheckpointBenchResult& result) {
  const RowBenchOptions& table = options.table;
  const auto line = [](const char* name, const std::string& value) {
    std::fputs(absl::StrFormat("%-12s %s\n", name, value).c_str(), stdout);
  };
  const auto saved = [](uint64_t bytes, double seconds) {
    const double gigabytes = 1e-9 * static_cast<double>(bytes);
    return absl::StrFormat("%.3f GB in %.2f s, %.2f GB/s", gigabytes, seconds, gigabytes / seconds);
  };
  line("rows", absl::StrFormat("%d of %d x %s, %s", table.rows, table.dim, table.row_type, table.optimizer));
  line("complete", saved(result.full_bytes, result.full_s));
  line("increment", absl::StrCat(saved(result.delta_bytes, result.delta_s), "; ", result.touched_rows,
                                 " rows had changed"));
  line("restored", absl::StrFormat("%.2f s, %.2f million rows a second", result.restore_s,
                                   1e-6 * static_cast<double>(table.rows) / result.restore_s));
  line("memory", absl::StrFormat("%.3f GB the table, at most %.3f GB the process",
                                 1e-9 * static_cast<double>(result.table_bytes),
                                 1e-9 * static_cast<double>(result.most_resident_bytes)));
}

void PrintCheckpointJson(const CheckpointBenchOptions& options, const CheckpointBenchResult& result) {
  const RowBenchOptions& table = options.table;
  const Json json = {{"rows", table.rows},
                     {"dim", table.dim},
                     {"row_type", table.row_type},
                     {"optimizer", table.optimizer},
                     {"touched_rows", result.touched_rows},
                     {"full_bytes", result.full_bytes},
                     {"full_s", result.full_s},
                     {"delta_bytes", result.delta_bytes},
                     {"delta_s", result.delta_s},
                     {"restore_s", result.restore_s},
                     {"table_bytes", result.table_bytes},
                     {"most_resident_bytes", result.most_resident_bytes}};
  std::fputs((json.dump() + "\n").c_str(), stdout);
}

absl::Status MeasureAndPrint(const CheckpointBenchOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const CheckpointBenchResult result, Measure(options));
  (options.json ? PrintCheckpointJson : PrintCheckpointText)(options, result);
  return absl::OkStatus();
}

}  // namespace

void AddBenchCheckpoint(CLI::App* bench, CommandContext* context) {
  CLI::App* command = bench->add_subcommand("checkpoint",
                                            "Save a table complete, then what has changed, and restore it: "
                                            "times, bytes and memory, in this process");
  auto options = std::make_shared<CheckpointBenchOptions>();
  const auto add = [command](const char* name, auto* value, const char* help) {
    return command->add_option(name, *value, help)->capture_default_str();
  };
  LimitTo(Between(1, 1e12), add("--rows", &options->table.rows, "Rows of the table"));
  LimitTo(Between(1, 4096), add("--dim", &options->table.dim, "Numbers of an embedding"));
  add("--row-type", &options->table.row_type, "How embeddings are stored: f32, f16 or bf16");
  add("--optimizer", &options->table.optimizer, "sgd, adagrad, rowwise_adagrad or adam");
  LimitTo(Range{.min = 0, .max = 1, .above_min = true},
          add("--touched", &options->touched, "Share of the rows that change between the two checkpoints"));
  LocalPath(command->add_option("--dir", options->directory,
                                "Where checkpoints 1 and 2 are written, and stay; the disk under test"))
      ->required();
  command->add_flag(
      "--json", options->json,
      "Print one JSON object: the flags, touched_rows, full_bytes, full_s, delta_bytes, delta_s, "
      "restore_s, table_bytes, most_resident_bytes");
  command->callback([options, context] {
    context->exit_code = ReportBench("bench checkpoint", MeasureAndPrint(*options));
  });
}

}  // namespace tandem::bench
