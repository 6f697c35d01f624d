// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/activity.h"

#include <algorithm>
#include <utility>

#include "nlohmann/json.hpp"
#include "ps/client/statistics.h"
#include "ps/row_staleness.h"
#include "ps/table.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::ordered_json;
using tandem::v1::TableInfo;
using tandem::v1::TableStatistics;

// Returns how much a counter has grown. A counter that is smaller than before belongs to a restarted server.
uint64_t Grown(uint64_t now, uint64_t before) { return now >= before ? now - before : now; }

TableStatistics Since(const TableStatistics& now, const TableStatistics& before) {
  TableStatistics since;
  since.set_pulls(Grown(now.pulls(), before.pulls()));
  since.set_pushes(Grown(now.pushes(), before.pushes()));
  since.set_pulled_rows(Grown(now.pulled_rows(), before.pulled_rows()));
  since.set_pushed_rows(Grown(now.pushed_rows(), before.pushed_rows()));
  since.set_unchanged_rows(Grown(now.unchanged_rows(), before.unchanged_rows()));
  since.set_unasked_rows(Grown(now.unasked_rows(), before.unasked_rows()));
  since.set_evicted_rows(Grown(now.evicted_rows(), before.evicted_rows()));
  since.set_pull_answer_bytes(Grown(now.pull_answer_bytes(), before.pull_answer_bytes()));
  since.set_push_request_bytes(Grown(now.push_request_bytes(), before.push_request_bytes()));
  *since.mutable_pull_latency() = ps::Since(now.pull_latency(), before.pull_latency());
  *since.mutable_push_latency() = ps::Since(now.push_latency(), before.push_latency());
  return since;
}

const TableInfo* Find(const std::vector<TableInfo>& tables, const std::string& name) {
  for (const TableInfo& table : tables) {
    if (table.config().name() == name) return &table;
  }
  return nullptr;
}

Json RowStalenessJson(const tandem::v1::RowStaleness& from) {
  const auto counts = ps::RowStalenessCounts::FromProto(from);
  return {{"gradients", counts.rows},
          {"mean", counts.Mean()},
          {"p99", counts.Quantile(0.99)},
          {"max", counts.max}};
}

Json LatencyJson(double p50, double p99) { return {{"p50_us", p50}, {"p99_us", p99}}; }

}  // namespace

std::vector<TableActivity> Activity(const Snapshot& now, const Snapshot* before) {
  double seconds = before == nullptr ? 0 : absl::ToDoubleSeconds(now.taken - before->taken);
  std::vector<std::vector<TableInfo>> grown;
  for (size_t s = 0; s < now.servers.size(); ++s) {
    const ServerSnapshot& server = now.servers[s];
    if (before == nullptr) seconds = std::max(seconds, server.statistics.uptime_s());
    std::vector<TableInfo>& tables = grown.emplace_back();
    for (const TableInfo& table : server.tables) {
      const ServerSnapshot* const earlier =
          before != nullptr && s < before->servers.size() ? &before->servers[s] : nullptr;
      if (before != nullptr && (earlier == nullptr || !earlier->status.ok())) continue;
      const TableInfo* const then =
          earlier == nullptr ? nullptr : Find(earlier->tables, table.config().name());
      TableInfo& since = tables.emplace_back();
      *since.mutable_config() = table.config();
      *since.mutable_statistics() =
          Since(table.statistics(), then == nullptr ? TableStatistics() : then->statistics());
    }
  }
  const std::vector<TableInfo> sums = ps::SumTables(grown, 0);
  std::vector<TableActivity> activity;
  for (const TableInfo& table : now.tables) {
    TableActivity& to = activity.emplace_back();
    to.info = table;
    const TableInfo* const sum = Find(sums, table.config().name());
    if (sum == nullptr || seconds <= 0) continue;
    const TableStatistics& s = sum->statistics();
    const auto rate = [seconds](uint64_t count) { return static_cast<double>(count) / seconds; };
    to.pulls_per_s = rate(s.pulls());
    to.pushes_per_s = rate(s.pushes());
    to.rows_per_s = rate(s.pulled_rows() + s.pushed_rows());
    to.pull_bytes_per_s = rate(s.pull_answer_bytes());
    to.push_bytes_per_s = rate(s.push_request_bytes());
    to.evicted_per_s = rate(s.evicted_rows());
    if (const uint64_t rows = s.pulled_rows() + s.unasked_rows(); rows > 0) {
      to.cached_share =
          static_cast<double>(s.unasked_rows() + s.unchanged_rows()) / static_cast<double>(rows);
    }
    to.pull_p50_us = ps::QuantileUs(s.pull_latency(), 0.5);
    to.pull_p99_us = ps::QuantileUs(s.pull_latency(), 0.99);
    to.push_p50_us = ps::QuantileUs(s.push_latency(), 0.5);
    to.push_p99_us = ps::QuantileUs(s.push_latency(), 0.99);
  }
  return activity;
}

double ProcessorShare(const ServerSnapshot& now, const ServerSnapshot* before) {
  double cpu = now.statistics.cpu_s(), time = now.statistics.uptime_s();
  if (before != nullptr && before->status.ok() && before->statistics.uptime_s() < time) {
    cpu -= before->statistics.cpu_s();
    time -= before->statistics.uptime_s();
  }
  return time > 0 ? std::max(0.0, cpu / time) : 0;
}

std::string SnapshotToJson(const Snapshot& now, const Snapshot* before) {
  Json json = {{"time", absl::FormatTime(absl::RFC3339_sec, now.time, absl::UTCTimeZone())}};
  json["servers"] = Json::array();
  for (size_t s = 0; s < now.servers.size(); ++s) {
    const ServerSnapshot& server = now.servers[s];
    Json entry = {{"server", s}, {"address", server.address}, {"answers", server.status.ok()}};
    if (!server.status.ok()) {
      entry["error"] = std::string(server.status.message());
    } else {
      const auto& own = server.statistics;
      const ServerSnapshot* const earlier =
          before != nullptr && s < before->servers.size() ? &before->servers[s] : nullptr;
      entry["uptime_s"] = own.uptime_s();
      entry["cpu_share"] = ProcessorShare(server, earlier);
      entry["rss_bytes"] = own.rss_bytes();
      entry["open_sockets"] = own.open_sockets();
      entry["parked_calls"] = own.parked_calls();
      entry["parked_bytes"] = own.parked_bytes();
      entry["kept_bytes"] = own.kept_bytes();
      entry["max_parked_bytes"] = own.max_parked_bytes();
    }
    json["servers"].push_back(std::move(entry));
  }
  json["tables"] = Json::array();
  for (const TableActivity& table : Activity(now, before)) {
    const TableStatistics& s = table.info.statistics();
    Json hottest = Json::array();
    for (const auto& hot : s.hottest()) hottest.push_back({{"id", hot.id()}, {"pulls", hot.pulls()}});
    json["tables"].push_back(
        {{"name", table.info.config().name()},
         {"mode", ps::FormatUpdateMode(table.info.config().update_mode())},
         {"dim", table.info.config().dim()},
         {"rows", s.rows()},
         {"bytes", s.bytes()},
         {"bytes_per_row", s.bytes_per_row()},
         {"version", s.version()},
         {"pulls", s.pulls()},
         {"pushes", s.pushes()},
         {"pulled_rows", s.pulled_rows()},
         {"pushed_rows", s.pushed_rows()},
         {"pulls_per_s", table.pulls_per_s},
         {"pushes_per_s", table.pushes_per_s},
         {"rows_per_s", table.rows_per_s},
         {"pull_bytes_per_s", table.pull_bytes_per_s},
         {"push_bytes_per_s", table.push_bytes_per_s},
         {"pull_latency", LatencyJson(table.pull_p50_us, table.pull_p99_us)},
         {"push_latency", LatencyJson(table.push_p50_us, table.push_p99_us)},
         {"staleness_mean", s.staleness_mean()},
         {"staleness_max", s.staleness_max()},
         {"staleness_histogram", s.staleness_histogram()},
         {"row_staleness", RowStalenessJson(s.row_staleness())},
         {"stale_pushes", s.stale_pushes()},
         {"kept_pushes", s.kept_pushes()},
         {"unchanged_rows", s.unchanged_rows()},
         {"unasked_rows", s.unasked_rows()},
         {"cached_share", table.cached_share.has_value() ? Json(*table.cached_share) : Json()},
         {"evicted_rows", s.evicted_rows()},
         {"evicted_per_s", table.evicted_per_s},
         {"spilled_rows", s.spilled_rows()},
         {"spilled_bytes", s.spilled_bytes()},
         {"missing_rows", s.missing_rows()},
         {"refused_pushes", s.refused_pushes()},
         {"longest_pause_us", s.longest_pause_us()},
         {"hottest", std::move(hottest)}});
  }
  return json.dump();
}

}  // namespace tandem::cli
