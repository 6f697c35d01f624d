// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/replay_metrics.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::cli {
namespace {

using tandem::v1::ReplayTableInfo;

struct Metric {
  const char* name;
  const char* type;
  const char* help;
  double (*value)(const ReplayTableInfo& table);
};

constexpr Metric kTableMetrics[] = {
    {"items", "gauge", "Items in the table", [](const ReplayTableInfo& t) { return double(t.items()); }},
    {"bytes", "gauge", "Bytes of the chunks that items refer to",
     [](const ReplayTableInfo& t) { return double(t.bytes()); }},
    {"inserts_total", "counter", "Items inserted",
     [](const ReplayTableInfo& t) { return double(t.total_inserts()); }},
    {"samples_total", "counter", "Items sampled",
     [](const ReplayTableInfo& t) { return double(t.total_samples()); }},
    {"samples_per_insert_wanted", "gauge", "samples_per_insert of the limit",
     [](const ReplayTableInfo& t) { return t.options().limit().samples_per_insert(); }},
    {"limiter_diff", "gauge", "inserts * samples_per_insert - samples - credited",
     [](const ReplayTableInfo& t) { return t.diff(); }},
    {"waiting_inserts", "gauge", "Inserts that wait for the limiter",
     [](const ReplayTableInfo& t) { return double(t.waiting_inserts()); }},
    {"waiting_samples", "gauge", "Samples that wait for the limiter",
     [](const ReplayTableInfo& t) { return double(t.waiting_samples()); }},
    {"insert_wait_seconds_total", "counter", "Time that inserts have waited",
     [](const ReplayTableInfo& t) { return t.insert_wait_seconds(); }},
    {"sample_wait_seconds_total", "counter", "Time that samples have waited",
     [](const ReplayTableInfo& t) { return t.sample_wait_seconds(); }},
    {"priority_updates_total", "counter", "Changes of priorities",
     [](const ReplayTableInfo& t) { return double(t.priority_updates()); }},
    {"missed_priority_updates_total", "counter", "Changes of priorities of items that had left",
     [](const ReplayTableInfo& t) { return double(t.missed_priority_updates()); }},
    {"lost_items_total", "counter", "Items acknowledged and lost with an earlier server",
     [](const ReplayTableInfo& t) { return double(t.lost_items()); }},
    {"repeated_inserts_total", "counter", "Inserts that had been taken before",
     [](const ReplayTableInfo& t) { return double(t.repeated_inserts()); }},
    {"rollouts", "gauge", "Rollouts that have been admitted and run",
     [](const ReplayTableInfo& t) { return double(t.staleness().running_rollouts()); }},
    {"waiting_admissions", "gauge", "Rollouts that wait to be admitted",
     [](const ReplayTableInfo& t) { return double(t.staleness().waiting_admits()); }},
    {"admission_wait_seconds_total", "counter", "Time that rollouts have waited to be admitted",
     [](const ReplayTableInfo& t) { return t.staleness().admit_wait_seconds(); }},
    {"admitted_rollouts_total", "counter", "Rollouts that were admitted",
     [](const ReplayTableInfo& t) { return double(t.staleness().admitted()); }},
    {"expired_rollouts_total", "counter", "Rollouts whose lease or time ended",
     [](const ReplayTableInfo& t) { return double(t.staleness().expired()); }},
    {"refused_items_total", "counter", "Items without a valid ticket",
     [](const ReplayTableInfo& t) { return double(t.staleness().refused_items()); }},
    {"committed_version", "gauge", "Version of the policy that learners have committed",
     [](const ReplayTableInfo& t) { return double(t.staleness().version()); }},
    {"largest_lag", "gauge", "Largest lag of a sampled item, in versions",
     [](const ReplayTableInfo& t) { return double(t.staleness().largest_lag()); }},
};

// Returns the number with all digits of a count.
std::string Number(double value) { return absl::StrFormat("%.15g", value); }

void Head(std::string* out, absl::string_view name, absl::string_view type, absl::string_view help) {
  absl::StrAppend(out, "# HELP tandem_replay_", name, " ", help, "\n# TYPE tandem_replay_", name, " ", type,
                  "\n");
}

}  // namespace

std::string ReplayMetricsText(const tandem::v1::ListReplayTablesResponse& state) {
  std::string out;
  const auto whole = [&](const char* name, const char* help, double value, const char* type = "gauge") {
    Head(&out, name, type, help);
    absl::StrAppend(&out, "tandem_replay_", name, " ", Number(value), "\n");
  };
  whole("uptime_seconds", "Time since the server started", state.uptime_s());
  whole("chunk_bytes", "Bytes of all chunks in memory", double(state.chunk_bytes()));
  whole("parked_calls", "Calls that wait", double(state.parked_calls()));
  whole("parked_bytes", "Bytes of the requests of calls that wait", double(state.parked_bytes()));
  whole("memory_waits", "Inserts that wait because of --max-memory", double(state.memory_waits()));
  whole("memory_refusals_total", "Inserts that were refused because of --max-memory",
        double(state.memory_refusals()), "counter");
  for (const Metric& metric : kTableMetrics) {
    Head(&out, metric.name, metric.type, metric.help);
    for (const ReplayTableInfo& table : state.tables()) {
      // Names of tables have no characters that would need escaping.
      absl::StrAppend(&out, "tandem_replay_", metric.name, "{table=\"", table.options().name(), "\"} ",
                      Number(metric.value(table)), "\n");
    }
  }
  Head(&out, "removed_items_total", "counter", "Items that left, by cause");
  for (const ReplayTableInfo& table : state.tables()) {
    const auto add = [&](const char* cause, uint64_t count) {
      absl::StrAppend(&out, "tandem_replay_removed_items_total{table=\"", table.options().name(),
                      "\",cause=\"", cause, "\"} ", count, "\n");
    };
    add("max_items", table.removed_by_max_items());
    add("max_bytes", table.removed_by_max_bytes());
    add("consumed", table.consumed());
    add("reset", table.removed_by_reset());
    add("stale", table.removed_stale());
    add("ttl", table.removed_by_ttl());
  }
  Head(&out, "sampled_lag_total", "counter",
       "Sampled items by lag in versions; the last lag counts larger ones");
  for (const ReplayTableInfo& table : state.tables()) {
    for (int lag = 0; lag < table.staleness().lags_size() && table.staleness().commits() > 0; ++lag) {
      absl::StrAppend(&out, "tandem_replay_sampled_lag_total{table=\"", table.options().name(), "\",lag=\"",
                      lag, "\"} ", table.staleness().lags(lag), "\n");
    }
  }
  return out;
}

}  // namespace tandem::cli
