// SPDX-License-Identifier: Apache-2.0
// tandem replay: serves replay tables, and looks at those of a running server.

#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/counted.h"
#include "base/local_path.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/commands/serve.h"
#include "cli/monitor/replay_metrics.h"
#include "google/protobuf/util/json_util.h"
#include "replay/client/remote_replay.h"
#include "replay/server/replay_server.h"
#include "replay/wire/messages.h"
#include "rpc/connect.h"
#include "rpc/security/security_flags.h"

namespace tandem::cli {
namespace {

using replay::TableOptions;

struct ReplayServeFlags {
  ServingFlags serving;
  std::vector<std::string> tables;
  uint64_t max_memory = 0;
  uint64_t max_parked = replay::ReplayServerOptions().max_parked_bytes;
  std::string checkpoint_dir;
  double checkpoint_seconds = 60;
};

struct ReplayLookFlags {
  std::string server;
  std::string table;
  double timeout_seconds = 5;
  bool json = false;
  uint32_t count = 10;
  // Changes; absent ones leave the value as it is.
  std::optional<double> samples_per_insert, min_diff, max_diff;
  std::optional<uint64_t> min_size, max_items, max_bytes;
};

// Parses "queue:NAME:SIZE", "stack:NAME:SIZE", "uniform:NAME:SIZE:MIN_SIZE",
// "prioritized:NAME:SIZE:MIN_SIZE:EXPONENT" or "paced:NAME:BATCH:MAX_LAG:EVERY:SLOW".
absl::StatusOr<TableOptions> ParseTable(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  uint64_t size = 0, min_size = 1;
  double exponent = 0.6;
  if (parts.size() >= 4 && parts[0] == "paced") {
    uint32_t batch = 0, max_lag = 0, every = 1;
    auto slow = absl::StatusOr<replay::SlowRollouts>(replay::SlowRollouts::kWait);
    if (parts.size() == 6) slow = replay::ParseSlowRollouts(parts[5]);
    if (parts.size() <= 6 && slow.ok() && absl::SimpleAtoi(parts[2], &batch) &&
        absl::SimpleAtoi(parts[3], &max_lag) && (parts.size() < 5 || absl::SimpleAtoi(parts[4], &every))) {
      return TableOptions::PacedQueue(parts[1], batch, max_lag, every, *slow);
    }
  }
  const bool numbers = parts.size() >= 3 && absl::SimpleAtoi(parts[2], &size) &&
                       (parts.size() < 4 || absl::SimpleAtoi(parts[3], &min_size)) &&
                       (parts.size() < 5 || absl::SimpleAtod(parts[4], &exponent));
  if (numbers) {
    if (parts[0] == "queue" && parts.size() == 3) return TableOptions::Queue(parts[1], size);
    if (parts[0] == "stack" && parts.size() == 3) return TableOptions::Stack(parts[1], size);
    if (parts[0] == "uniform" && parts.size() <= 4) return TableOptions::Uniform(parts[1], size, min_size);
    if (parts[0] == "prioritized" && parts.size() <= 5) {
      return TableOptions::Prioritized(parts[1], size, min_size, exponent);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--table ", text,
                   ": expected queue:NAME:SIZE, stack:NAME:SIZE, uniform:NAME:SIZE[:MIN_SIZE], "
                   "prioritized:NAME:SIZE[:MIN_SIZE[:EXPONENT]] or "
                   "paced:NAME:BATCH:MAX_LAG[:EVERY[:wait|take|drop]]"));
}

absl::Status ServeReplay(const ReplayServeFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(Serving serving, Serving::Start());
  std::vector<TableOptions> tables;
  for (const std::string& text : flags.tables) {
    TANDEM_ASSIGN_OR_RETURN(tables.emplace_back(), ParseTable(text));
  }
  TANDEM_ASSIGN_OR_RETURN(
      const std::unique_ptr<replay::ReplayServer> server,
      replay::ReplayServer::Make({.max_memory_bytes = flags.max_memory,
                                  .max_parked_bytes = flags.max_parked,
                                  .checkpoint_directory = flags.checkpoint_dir,
                                  .checkpoint_every = flags.checkpoint_seconds > 0
                                                          ? absl::Seconds(flags.checkpoint_seconds)
                                                          : absl::InfiniteDuration()}));
  for (const TableOptions& table : tables)
    TANDEM_RETURN_IF_ERROR(server->CreateTable(replay::ToProto(table)));
  TANDEM_RETURN_IF_ERROR(serving.Serve("tandem replay serve", flags.serving,
                                       [&server] { return ReplayMetricsText(server->State()); },
                                       {server->service()}));
  server->Stop();  // before the checkpoint, so that it has everything that was acknowledged
  absl::Status saved;
  if (!flags.checkpoint_dir.empty()) saved = server->SaveCheckpoint().status();
  serving.Drain();
  return Annotate(saved, "the last checkpoint");
}

absl::StatusOr<std::unique_ptr<replay::RemoteReplay>> ConnectTo(const ReplayLookFlags& flags) {
  rpc::ConnectOptions options;
  options.transport = "grpc";
  options.channel.caller.member = "tandem replay";
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, rpc::Connect(flags.server, options));
  return std::make_unique<replay::RemoteReplay>(
      std::shared_ptr<rpc::Channel>(std::move(channel)),
      replay::RemoteReplayOptions{.call_timeout = absl::Seconds(flags.timeout_seconds)});
}

absl::Status PrintReplayMessage(const google::protobuf::Message& message) {
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return absl::InternalError(status.ToString());
  std::printf("%s\n", json.c_str());
  return absl::OkStatus();
}

std::string SelectorText(const tandem::v1::ReplaySelector& selector) {
  const absl::string_view name = replay::Name(static_cast<replay::SelectorKind>(selector.kind()));
  return selector.kind() == tandem::v1::ReplaySelector::PRIORITIZED
             ? absl::StrCat(name, "^", selector.exponent())
             : std::string(name);
}

std::string LimitText(const tandem::v1::ReplayLimit& limit) {
  return absl::StrCat(limit.has_min_diff() ? absl::StrCat(limit.min_diff()) : "-inf", " <= inserts x ",
                      limit.samples_per_insert(),
                      " - samples <= ", limit.has_max_diff() ? absl::StrCat(limit.max_diff()) : "inf",
                      ", min_size ", limit.min_size());
}

// Prints the committed version, the rollouts and the lag, as far as the table has them.
void PrintStaleness(const tandem::v1::ReplayTableInfo& table) {
  const tandem::v1::ReplayStaleness& options = table.options().staleness();
  const tandem::v1::ReplayStalenessInfo& info = table.staleness();
  if (options.kind() == tandem::v1::ReplayStaleness::PACE) {
    std::printf("  %-9s max_lag %u, batch %u, every %u, slow %s; %llu run, %llu wait, %llu expired\n",
                "rollouts", options.max_lag(), options.batch(), options.every(),
                std::string(replay::Name(static_cast<replay::SlowRollouts>(options.slow()))).c_str(),
                static_cast<unsigned long long>(info.running_rollouts()),
                static_cast<unsigned long long>(info.waiting_admits()),
                static_cast<unsigned long long>(info.expired()));
  }
  if (info.commits() > 0) {
    std::printf("  %-9s version %lld; largest lag of a sample %llu; %llu items left stale\n", "committed",
                static_cast<long long>(info.version()), static_cast<unsigned long long>(info.largest_lag()),
                static_cast<unsigned long long>(table.removed_stale()));
  }
}

absl::Status ListReplay(const ReplayLookFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const auto replay, ConnectTo(flags));
  tandem::v1::ListReplayTablesResponse state;
  TANDEM_RETURN_IF_ERROR(replay->Call("ListTables", tandem::v1::ListReplayTablesRequest(), &state));
  if (flags.json) return PrintReplayMessage(state);
  if (state.tables().empty()) std::printf("no tables yet\n");
  for (const tandem::v1::ReplayTableInfo& table : state.tables()) {
    const auto& options = table.options();
    std::vector<std::string> columns;
    for (const auto& column : table.columns()) {
      columns.push_back(absl::StrCat(
          column.name(), " ", tandem::Name(static_cast<DType>(column.dtype())),
          column.shape().empty() ? "" : absl::StrCat("[", absl::StrJoin(column.shape(), ","), "]")));
    }
    std::printf("%s\n", options.name().c_str());
    std::printf("  %-9s sampler %s, remover %s, max_items %llu%s%s\n", "what",
                SelectorText(options.sampler()).c_str(), SelectorText(options.remover()).c_str(),
                static_cast<unsigned long long>(options.max_items()),
                options.max_bytes() > 0 ? absl::StrCat(", max_bytes ", options.max_bytes()).c_str() : "",
                options.max_times_sampled() > 0
                    ? absl::StrCat(", max_times_sampled ", options.max_times_sampled()).c_str()
                    : "");
    std::printf("  %-9s %s\n", "columns",
                columns.empty() ? "not known yet" : absl::StrJoin(columns, ", ").c_str());
    std::printf("  %-9s %llu items, %llu bytes\n", "holds", static_cast<unsigned long long>(table.items()),
                static_cast<unsigned long long>(table.bytes()));
    std::printf("  %-9s %s; diff %g\n", "limit", LimitText(options.limit()).c_str(), table.diff());
    std::printf("  %-9s %llu inserts, %llu samples; %llu and %llu wait\n", "calls",
                static_cast<unsigned long long>(table.total_inserts()),
                static_cast<unsigned long long>(table.total_samples()),
                static_cast<unsigned long long>(table.waiting_inserts()),
                static_cast<unsigned long long>(table.waiting_samples()));
    std::printf(
        "  %-9s %llu by max_items, %llu by max_bytes, %llu consumed, %llu by reset, %llu by ttl, %llu lost\n",
        "left", static_cast<unsigned long long>(table.removed_by_max_items()),
        static_cast<unsigned long long>(table.removed_by_max_bytes()),
        static_cast<unsigned long long>(table.consumed()),
        static_cast<unsigned long long>(table.removed_by_reset()),
        static_cast<unsigned long long>(table.removed_by_ttl()),
        static_cast<unsigned long long>(table.lost_items()));
    PrintStaleness(table);
  }
  return absl::OkStatus();
}

absl::Status PeekReplay(const ReplayLookFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const auto replay, ConnectTo(flags));
  tandem::v1::ReplayPeekRequest request;
  request.set_table(flags.table);
  request.set_count(flags.count);
  tandem::v1::ReplayPeekResponse response;
  TANDEM_RETURN_IF_ERROR(replay->Call("Peek", request, &response));
  if (flags.json) return PrintReplayMessage(response);
  std::printf("%20s %12s %14s %7s %10s %10s  %s\n", "key", "serial", "priority", "sampled", "version",
              "newest", "steps");
  for (const tandem::v1::ReplayItemInfo& item : response.items()) {
    std::printf("%20llu %12llu %14g %7u %10lld %10lld  %s\n", static_cast<unsigned long long>(item.key()),
                static_cast<unsigned long long>(item.serial()), item.priority(), item.times_sampled(),
                static_cast<long long>(item.min_version()), static_cast<long long>(item.max_version()),
                absl::StrJoin(item.steps(), ",").c_str());
  }
  return absl::OkStatus();
}

absl::Status ExplainReplay(const ReplayLookFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const auto replay, ConnectTo(flags));
  tandem::v1::ReplayExplainRequest request;
  request.set_table(flags.table);
  tandem::v1::ReplayExplainResponse response;
  TANDEM_RETURN_IF_ERROR(replay->Call("Explain", request, &response));
  for (const std::string& reason : response.reasons()) std::printf("%s\n", reason.c_str());
  return absl::OkStatus();
}

absl::Status SetReplay(const ReplayLookFlags& flags) {
  tandem::v1::ReplaySetLimitsRequest request;
  request.set_table(flags.table);
  if (flags.samples_per_insert) request.set_samples_per_insert(*flags.samples_per_insert);
  if (flags.min_diff) request.set_min_diff(*flags.min_diff);
  if (flags.max_diff) request.set_max_diff(*flags.max_diff);
  if (flags.min_size) request.set_min_size(*flags.min_size);
  if (flags.max_items) request.set_max_items(*flags.max_items);
  if (flags.max_bytes) request.set_max_bytes(*flags.max_bytes);
  TANDEM_ASSIGN_OR_RETURN(const auto replay, ConnectTo(flags));
  tandem::v1::ReplaySetLimitsResponse response;
  TANDEM_RETURN_IF_ERROR(replay->Call("SetLimits", request, &response));
  const auto& options = response.table().options();
  std::printf("table '%s': %s; max_items %llu, max_bytes %llu\n", flags.table.c_str(),
              LimitText(options.limit()).c_str(), static_cast<unsigned long long>(options.max_items()),
              static_cast<unsigned long long>(options.max_bytes()));
  return absl::OkStatus();
}

void AddLookFlags(CLI::App* command, ReplayLookFlags* flags, bool table) {
  rpc::AddSecurityFlags(command);
  command->add_option("--server", flags->server, "host:port or unix:/path of the replay server")->required();
  command->add_option("--timeout", flags->timeout_seconds, "Seconds to wait for the server")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  if (table) command->add_option("--table", flags->table, "The table's name")->required();
}

void AddServe(CLI::App* replay, CommandContext* context) {
  auto flags = std::make_shared<ReplayServeFlags>();
  CLI::App* serve = replay->add_subcommand("serve", "Serve replay tables; prints the address");
  serve->footer("Clients create tables, or --table does. Serves until SIGTERM or SIGINT.");
  AddServingFlags(serve, &flags->serving);
  serve->add_option("--table", flags->tables,
                    "A table to create: queue:NAME:SIZE, stack:NAME:SIZE, uniform:NAME:SIZE[:MIN_SIZE], "
                    "prioritized:NAME:SIZE[:MIN_SIZE[:EXPONENT]] or "
                    "paced:NAME:BATCH:MAX_LAG[:EVERY[:wait|take|drop]]; may be given several times");
  serve
      ->add_option("--max-memory", flags->max_memory,
                   "Memory of chunks, in bytes or as 64MiB; inserts beyond it wait if items leave their "
                   "table by samples or by age, else they are refused [0: no limit]")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  serve->add_option("--max-parked", flags->max_parked, "Memory of calls that wait; more are refused")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->default_str("256MiB");
  LocalPath(
      serve->add_option("--checkpoint-dir", flags->checkpoint_dir,
                        "Where checkpoints are written; the newest one is restored at the start [none]"));
  serve
      ->add_option("--checkpoint-seconds", flags->checkpoint_seconds,
                   "Seconds between checkpoints; 0: only on request and at the end")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  serve->callback([flags, context] { context->exit_code = Report("replay serve", ServeReplay(*flags)); });
}

}  // namespace

void AddReplay(CLI::App& app, CommandContext* context) {
  CLI::App* replay =
      app.add_subcommand("replay", "Serve replay tables, and look at those of a running server");
  replay->require_subcommand(1);
  AddServe(replay, context);
  auto flags = std::make_shared<ReplayLookFlags>();
  CLI::App* list =
      replay->add_subcommand("list", "The tables: what they hold, their limits, what has left them");
  AddLookFlags(list, flags.get(), /*table=*/false);
  list->add_flag("--json", flags->json, "The same as one JSON object");
  list->callback([flags, context] { context->exit_code = Report("replay list", ListReplay(*flags)); });
  CLI::App* peek = replay->add_subcommand("peek", "Items of a table, without sampling them");
  AddLookFlags(peek, flags.get(), /*table=*/true);
  peek->add_option("--count", flags->count, "How many")->check(CLI::Range(1, 1000))->capture_default_str();
  peek->add_flag("--json", flags->json, "The same as one JSON object");
  peek->callback([flags, context] { context->exit_code = Report("replay peek", PeekReplay(*flags)); });
  CLI::App* why = replay->add_subcommand("why", "Why inserts or samples of a table wait");
  AddLookFlags(why, flags.get(), /*table=*/true);
  why->callback([flags, context] { context->exit_code = Report("replay why", ExplainReplay(*flags)); });
  CLI::App* set = replay->add_subcommand("set", "Change a table's limit and budgets while it is in use");
  AddLookFlags(set, flags.get(), /*table=*/true);
  set->add_option("--samples-per-insert", flags->samples_per_insert, "Samples wanted for each insert");
  set->add_option("--min-diff", flags->min_diff, "Samples stop here; -inf: never");
  set->add_option("--max-diff", flags->max_diff, "Inserts stop here; inf: never");
  set->add_option("--min-size", flags->min_size, "Items that must be there before samples begin");
  set->add_option("--max-items", flags->max_items, "Budget of items");
  set->add_option("--max-bytes", flags->max_bytes, "Budget of bytes; 0: none");
  set->callback([flags, context] { context->exit_code = Report("replay set", SetReplay(*flags)); });
}

}  // namespace tandem::cli
