// SPDX-License-Identifier: Apache-2.0
// tandem table: lists a running job's tables, changes how their updates are synchronised, flushes and drops
// them.

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_flags.h"
#include "cli/monitor/activity.h"
#include "cli/monitor/find_job.h"
#include "cli/monitor/screen.h"
#include "cli/monitor/snapshot.h"
#include "ps/row_staleness.h"
#include "ps/table.h"

namespace tandem::cli {
namespace {

struct TableFlags {
  JobFlags job;
  std::string table;
  std::string mode;
  bool json = false;
};

struct View {
  std::unique_ptr<ServerSet> servers;
  Snapshot snapshot;
};

// Connects to the job's servers and takes a snapshot. Returns an error unless all servers respond: a list
// without some servers' rows, or a change that some servers miss, would mislead the user.
absl::StatusOr<View> Look(const JobFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> addresses, FindServers(flags));
  View view;
  TANDEM_ASSIGN_OR_RETURN(view.servers, ServerSet::Connect(std::move(addresses)));
  view.snapshot = view.servers->Take(/*hottest=*/0, absl::Seconds(flags.timeout_seconds));
  for (size_t s = 0; s < view.snapshot.servers.size(); ++s) {
    const ServerSnapshot& server = view.snapshot.servers[s];
    if (!server.status.ok())
      return Annotate(server.status, absl::StrCat("server ", s, " (", server.address, ") does not answer"));
  }
  return view;
}

std::string AllowedStaleness(const tandem::v1::UpdateMode& mode) {
  switch (mode.kind()) {
    case tandem::v1::UpdateMode::SYNC:
      return "0";
    case tandem::v1::UpdateMode::BOUNDED:
      return absl::StrCat(mode.staleness(), " steps");
    case tandem::v1::UpdateMode::GBA:
      return absl::StrCat(mode.staleness(), " updates, older ones are left out");
    default:
      return "any";
  }
}

// Returns the number of pushes by their staleness: "0: 812  1: 90  3: 2".
std::string Histogram(const tandem::v1::TableStatistics& statistics) {
  std::vector<std::string> bins;
  const int size = statistics.staleness_histogram_size();
  for (int i = 0; i < size; ++i) {
    if (statistics.staleness_histogram(i) == 0) continue;
    bins.push_back(absl::StrCat(i, i + 1 == size ? "+: " : ": ", statistics.staleness_histogram(i)));
  }
  return bins.empty() ? "no push yet" : absl::StrJoin(bins, "  ");
}

absl::Status List(const TableFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const View view, Look(flags.job));
  if (flags.json) {
    std::printf("%s\n", SnapshotToJson(view.snapshot, nullptr).c_str());
    return absl::OkStatus();
  }
  if (view.snapshot.tables.empty()) std::printf("no tables yet\n");
  for (const tandem::v1::TableInfo& table : view.snapshot.tables) {
    const auto& config = table.config();
    const auto& s = table.statistics();
    const bool dense = config.kind() == tandem::v1::TableConfig::DENSE;
    std::printf("%s\n", config.name().c_str());
    std::printf("  %-12s %s, dim %u, %s, %s, %u workers\n", "what", dense ? "dense" : "embedding",
                config.dim(),
                absl::AsciiStrToLower(tandem::v1::TableConfig::RowType_Name(config.row_type())).c_str(),
                config.optimizer().kind().c_str(), config.num_workers());
    std::printf("  %-12s %s rows, %s bytes (%.1f a row), %s evicted, %s on disk\n", "holds",
                ShortNumber(static_cast<double>(s.rows())).c_str(),
                ShortNumber(static_cast<double>(s.bytes())).c_str(), s.bytes_per_row(),
                ShortNumber(static_cast<double>(s.evicted_rows())).c_str(),
                ShortNumber(static_cast<double>(s.spilled_rows())).c_str());
    std::printf("  %-12s %s\n", "mode", ps::FormatUpdateMode(config.update_mode()).c_str());
    std::printf("  %-12s %s\n", "  allowed", AllowedStaleness(config.update_mode()).c_str());
    std::printf("  %-12s mean %.2f, at most %llu updates; pushes by staleness  %s\n", "  measured",
                s.staleness_mean(), static_cast<unsigned long long>(s.staleness_max()), Histogram(s).c_str());
    const auto rows = ps::RowStalenessCounts::FromProto(s.row_staleness());
    if (rows.rows > 0) {
      std::printf("  %-12s mean %.2f, p99 %llu, at most %llu updates of the row itself; %s gradients\n",
                  "  of rows", rows.Mean(), static_cast<unsigned long long>(rows.Quantile(0.99)),
                  static_cast<unsigned long long>(rows.max),
                  ShortNumber(static_cast<double>(rows.rows)).c_str());
    }
    if (s.stale_pushes() > 0) {
      std::printf("  %-12s %llu pushes\n", "  left out", static_cast<unsigned long long>(s.stale_pushes()));
    }
  }
  return absl::OkStatus();
}

const tandem::v1::TableInfo* Find(const Snapshot& snapshot, const std::string& name) {
  for (const tandem::v1::TableInfo& table : snapshot.tables) {
    if (table.config().name() == name) return &table;
  }
  return nullptr;
}

// Returns the table, or NotFound with the names of those that exist.
absl::StatusOr<const tandem::v1::TableInfo*> FindOrExplain(const Snapshot& snapshot,
                                                           const std::string& name) {
  const tandem::v1::TableInfo* const found = Find(snapshot, name);
  if (found != nullptr) return found;
  return absl::NotFoundError(absl::StrCat(
      "the job has no table '", name, "'; it has: ",
      snapshot.tables.empty()
          ? "none"
          : absl::StrJoin(snapshot.tables, ", ", [](std::string* out, const tandem::v1::TableInfo& table) {
              out->append(table.config().name());
            })));
}

// Calls a method of all servers that changes the table. The error says which servers have made the change.
absl::Status ChangeAll(const View& view, const TableFlags& flags, const std::string& method,
                       const google::protobuf::MessageLite& request) {
  const std::vector<absl::StatusOr<Bytes>> responses =
      view.servers->CallAll(method, request, absl::Seconds(flags.job.timeout_seconds), /*insist=*/true);
  std::vector<std::string> changed;
  absl::Status failed;
  for (size_t s = 0; s < responses.size(); ++s) {
    if (responses[s].ok()) {
      changed.push_back(absl::StrCat(s));
    } else if (failed.ok()) {
      failed =
          Annotate(responses[s].status(), absl::StrCat("server ", s, " (", view.servers->address(s), ")"));
    }
  }
  if (failed.ok()) return failed;
  return Annotate(
      failed, absl::StrCat("table '", flags.table, "' has changed on ",
                           changed.empty() ? "no server"
                                           : absl::StrCat("servers ", absl::StrJoin(changed, ", "), " only"),
                           ", do it again"));
}

// Sets the table's update mode on all servers. Without a mode it flushes the table: a gba table then applies
// the gradients that it has accumulated.
absl::Status Change(const TableFlags& flags) {
  tandem::v1::SetUpdateModeRequest request;
  request.set_table(flags.table);
  if (!flags.mode.empty()) {
    TANDEM_ASSIGN_OR_RETURN(*request.mutable_update_mode(), ps::ParseUpdateMode(flags.mode));
  }
  TANDEM_ASSIGN_OR_RETURN(const View view, Look(flags.job));
  TANDEM_ASSIGN_OR_RETURN(const tandem::v1::TableInfo* const before,
                          FindOrExplain(view.snapshot, flags.table));
  TANDEM_RETURN_IF_ERROR(ChangeAll(view, flags, "SetUpdateMode", request));
  if (flags.mode.empty()) {
    std::printf("table '%s': %llu kept pushes applied\n", flags.table.c_str(),
                static_cast<unsigned long long>(before->statistics().kept_pushes()));
  } else {
    std::printf("table '%s': %s, was %s\n", flags.table.c_str(),
                ps::FormatUpdateMode(request.update_mode()).c_str(),
                ps::FormatUpdateMode(before->config().update_mode()).c_str());
    if (before->config().update_mode().kind() == tandem::v1::UpdateMode::SYNC &&
        request.update_mode().kind() != tandem::v1::UpdateMode::SYNC) {
      std::printf(
          "note: a run that began with 'train.mode: sync' replicates none of its rows in the workers until "
          "it is "
          "started again\n      in this mode (--resume latest --set train.mode=...); rows that are updated "
          "often "
          "may lose quality until then\n");
    }
  }
  return absl::OkStatus();
}

absl::Status Drop(const TableFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const View view, Look(flags.job));
  TANDEM_ASSIGN_OR_RETURN(const tandem::v1::TableInfo* const before,
                          FindOrExplain(view.snapshot, flags.table));
  tandem::v1::DropTableRequest request;
  request.set_table(flags.table);
  TANDEM_RETURN_IF_ERROR(ChangeAll(view, flags, "DropTable", request));
  std::printf("table '%s': dropped, it had %llu rows\n", flags.table.c_str(),
              static_cast<unsigned long long>(before->statistics().rows()));
  return absl::OkStatus();
}

}  // namespace

void AddTable(CLI::App& app, CommandContext* context) {
  auto flags = std::make_shared<TableFlags>();
  CLI::App* table =
      app.add_subcommand("table", "List a running job's tables, change their update modes, drop them");
  table->require_subcommand(1);
  CLI::App* list = table->add_subcommand(
      "list",
      "Each table: what it is and holds, its mode, and the staleness measured beside the one allowed");
  AddServersFlags(list, &flags->job);
  list->add_flag("--json", flags->json, "The same as one JSON object");
  list->callback([flags, context] { context->exit_code = Report("table list", List(*flags)); });
  CLI::App* set =
      table->add_subcommand("set-mode", "Change how a table's updates are synchronised, on all servers");
  AddServersFlags(set, &flags->job);
  set->add_option("--table", flags->table, "Its name")->required();
  set->add_option("--mode", flags->mode,
                  "sync, bounded:STALENESS, async, gba:STALENESS or gba:STALENESS:GLOBAL_BATCH")
      ->required();
  set->callback([flags, context] { context->exit_code = Report("table set-mode", Change(*flags)); });
  CLI::App* flush =
      table->add_subcommand("flush", "Apply what a gba table keeps, though the update is not full");
  AddServersFlags(flush, &flags->job);
  flush->add_option("--table", flags->table, "Its name")->required();
  flush->callback([flags, context] { context->exit_code = Report("table flush", Change(*flags)); });
  CLI::App* drop = table->add_subcommand(
      "drop",
      "Remove a table with its rows from all servers; calls of workers that use it fail from then on");
  AddServersFlags(drop, &flags->job);
  drop->add_option("--table", flags->table, "Its name")->required();
  drop->callback([flags, context] { context->exit_code = Report("table drop", Drop(*flags)); });
}

}  // namespace tandem::cli
