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
    {"items", "gauge", "Number of items in the table.",
     [](const ReplayTableInfo& t) { return double(t.items()); }},
    {"bytes", "gauge", "Size of the chunks that items of the table refer to, in bytes.",
     [](const ReplayTableInfo& t) { return double(t.bytes()); }},
    {"inserts_total", "counter", "Number of items that were inserted into the table.",
     [](const ReplayTableInfo& t) { return double(t.total_inserts()); }},
    {"samples_total", "counter", "Number of items that were sampled from the table.",
     [](const ReplayTableInfo& t) { return double(t.total_samples()); }},
    {"samples_per_insert_wanted", "gauge", "The samples_per_insert that the table's rate limiter aims at.",
     [](const ReplayTableInfo& t) { return t.options().limit().samples_per_insert(); }},
    {"limiter_diff", "gauge",
     "Balance of the table's rate limiter: inserts * samples_per_insert - samples - credited "
     "samples.",
     [](const ReplayTableInfo& t) { return t.diff(); }},
    {"waiting_inserts", "gauge", "Number of inserts that wait for the table's rate limiter.",
     [](const ReplayTableInfo& t) { return double(t.waiting_inserts()); }},
    {"waiting_samples", "gauge", "Number of samples that wait for the table's rate limiter.",
     [](const ReplayTableInfo& t) { return double(t.waiting_samples()); }},
    {"insert_wait_seconds_total", "counter",
     "Time that inserts have waited for the table's rate limiter, in seconds.",
     [](const ReplayTableInfo& t) { return t.insert_wait_seconds(); }},
    {"sample_wait_seconds_total", "counter",
     "Time that samples have waited for the table's rate limiter, in seconds.",
     [](const ReplayTableInfo& t) { return t.sample_wait_seconds(); }},
    {"priority_updates_total", "counter", "Number of changes of items' priorities.",
     [](const ReplayTableInfo& t) { return double(t.priority_updates()); }},
    {"missed_priority_updates_total", "counter",
     "Number of changes of priorities whose items had left the table.",
     [](const ReplayTableInfo& t) { return double(t.missed_priority_updates()); }},
    {"lost_items_total", "counter",
     "Number of items that an earlier server had acknowledged and that were lost with it.",
     [](const ReplayTableInfo& t) { return double(t.lost_items()); }},
    {"repeated_inserts_total", "counter",
     "Number of inserts that were sent again though the server had taken them.",
     [](const ReplayTableInfo& t) { return double(t.repeated_inserts()); }},
    {"rollouts", "gauge", "Number of rollouts that were admitted and are running.",
     [](const ReplayTableInfo& t) { return double(t.staleness().running_rollouts()); }},
    {"waiting_admissions", "gauge", "Number of rollouts that wait to be admitted.",
     [](const ReplayTableInfo& t) { return double(t.staleness().waiting_admits()); }},
    {"admission_wait_seconds_total", "counter", "Time that rollouts have waited to be admitted, in seconds.",
     [](const ReplayTableInfo& t) { return t.staleness().admit_wait_seconds(); }},
    {"admitted_rollouts_total", "counter", "Number of rollouts that were admitted.",
     [](const ReplayTableInfo& t) { return double(t.staleness().admitted()); }},
    {"expired_rollouts_total", "counter",
     "Number of rollouts whose lease or time ended before they were finished.",
     [](const ReplayTableInfo& t) { return double(t.staleness().expired()); }},
    {"refused_items_total", "counter", "Number of items that were refused because they had no valid ticket.",
     [](const ReplayTableInfo& t) { return double(t.staleness().refused_items()); }},
    {"committed_version", "gauge", "Version of the policy that learners have committed last.",
     [](const ReplayTableInfo& t) { return double(t.staleness().version()); }},
    {"largest_lag", "gauge", "Largest lag of a sampled item behind the committed version, in versions.",
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
  whole("uptime_seconds", "Time since the replay server started, in seconds.", state.uptime_s());
  whole("chunk_bytes", "Size of all chunks in the server's memory, in bytes.", double(state.chunk_bytes()));
  whole("parked_calls", "Number of calls that wait on the replay server.", double(state.parked_calls()));
  whole("parked_bytes", "Size of the requests of calls that wait on the replay server, in bytes.",
        double(state.parked_bytes()));
  whole("memory_waits", "Number of inserts that wait because the server's memory is used up (--max-memory).",
        double(state.memory_waits()));
  whole("memory_refusals_total",
        "Number of inserts that were refused because the server's memory is used up "
        "(--max-memory).",
        double(state.memory_refusals()), "counter");
  for (const Metric& metric : kTableMetrics) {
    Head(&out, metric.name, metric.type, metric.help);
    for (const ReplayTableInfo& table : state.tables()) {
      // Names of tables have no characters that would need escaping.
      absl::StrAppend(&out, "tandem_replay_", metric.name, "{table=\"", table.options().name(), "\"} ",
                      Number(metric.value(table)), "\n");
    }
  }
  Head(&out, "removed_items_total", "counter", "Number of items that left the table, by cause.");
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
       "Number of sampled items by their lag in versions; the largest lag counts larger ones, too.");
  for (const ReplayTableInfo& table : state.tables()) {
    for (int lag = 0; lag < table.staleness().lags_size() && table.staleness().commits() > 0; ++lag) {
      absl::StrAppend(&out, "tandem_replay_sampled_lag_total{table=\"", table.options().name(), "\",lag=\"",
                      lag, "\"} ", table.staleness().lags(lag), "\n");
    }
  }
  return out;
}

}  // namespace tandem::cli
