// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/metric_families.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/latency_bins.h"
#include "ps/row_staleness.h"

namespace tandem::cli {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using tandem::v1::DurabilityInfo;
using tandem::v1::ReplicaStatus;
using tandem::v1::ServerStatistics;
using tandem::v1::TableInfo;
using tandem::v1::TableStatistics;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

MetricFamily Family(const char* name, const char* help, MetricType type) {
  MetricFamily family;
  family.name = absl::StrCat("tandem_", name);
  family.help = help;
  family.type = type;
  return family;
}

void Add(MetricFamily* family, std::vector<ClientMetric::Label> labels, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  (family->type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  family->metric.push_back(std::move(metric));
}

// Makes a cumulative histogram. `upper(i)` is the upper bound of bin i; the last bin has none.
template <typename Counts, typename Upper>
ClientMetric Histogram(const std::string& table, const Counts& counts, double sum, Upper upper) {
  ClientMetric metric;
  metric.label = {{"table", table}};
  uint64_t below = 0;
  for (int i = 0; i < static_cast<int>(counts.size()); ++i) {
    below += counts[i];
    metric.histogram.bucket.push_back(
        {below, i + 1 == static_cast<int>(counts.size()) ? kInfinity : upper(i)});
  }
  metric.histogram.sample_count = below;
  metric.histogram.sample_sum = sum;
  return metric;
}

// Returns the counts of a latency histogram by octave (eight bins): a time series for each bin would be too
// many.
std::vector<uint64_t> Octaves(const tandem::v1::LatencyHistogram& latency) {
  constexpr size_t kOctave = kLatencyBinsPerOctave;
  std::vector<uint64_t> octaves(1 + (kLatencyBins - 1) / kOctave);
  for (int bin = 0; bin < latency.counts_size(); ++bin) {
    octaves[std::min((bin + kOctave - 1) / kOctave, octaves.size() - 1)] += latency.counts(bin);
  }
  return octaves;
}

MetricFamily Latency(const ServerMetrics& figures, const char* name, const char* help,
                     const tandem::v1::LatencyHistogram& (TableStatistics::*of)() const) {
  MetricFamily family = Family(name, help, MetricType::Histogram);
  for (const TableInfo& table : figures.tables) {
    const tandem::v1::LatencyHistogram& latency = (table.statistics().*of)();
    family.metric.push_back(Histogram(table.config().name(), Octaves(latency), latency.sum_us() * 1e-6,
                                      [](int octave) { return std::ldexp(1e-6, octave); }));
  }
  return family;
}

MetricFamily Staleness(const ServerMetrics& figures) {
  MetricFamily family =
      Family("table_staleness", "Pushes by the updates of the table between their pull and them",
             MetricType::Histogram);
  for (const TableInfo& table : figures.tables) {
    const TableStatistics& s = table.statistics();
    double pushes = 0;
    for (const uint64_t count : s.staleness_histogram()) pushes += static_cast<double>(count);
    family.metric.push_back(Histogram(table.config().name(), s.staleness_histogram(),
                                      s.staleness_mean() * pushes,
                                      [](int bin) { return static_cast<double>(bin); }));
  }
  return family;
}

MetricFamily RowStaleness(const ServerMetrics& figures) {
  using Counts = ps::RowStalenessCounts;
  MetricFamily family = Family("table_row_staleness",
                               "Gradients by the updates of their row between its pull and theirs; a sample",
                               MetricType::Histogram);
  for (const TableInfo& table : figures.tables) {
    const Counts counts = Counts::FromProto(table.statistics().row_staleness());
    family.metric.push_back(
        Histogram(table.config().name(), counts.histogram, static_cast<double>(counts.sum),
                  [](int bin) { return static_cast<double>(Counts::BinStart(bin + 1) - 1); }));
  }
  return family;
}

double AllowedStaleness(const tandem::v1::UpdateMode& mode) {
  switch (mode.kind()) {
    case tandem::v1::UpdateMode::SYNC:
      return 0;
    case tandem::v1::UpdateMode::ASYNC:
      return kInfinity;
    default:
      return mode.staleness();
  }
}

MetricFamily Mode(const ServerMetrics& figures) {
  MetricFamily family = Family("table_mode", "1 for the table's update mode", MetricType::Gauge);
  for (const TableInfo& table : figures.tables) {
    const int kind = table.config().update_mode().kind();
    constexpr const char* kNames[] = {"sync", "bounded", "async", "gba"};
    for (int i = 0; i < 4; ++i) {
      Add(&family, {{"table", table.config().name()}, {"mode", kNames[i]}}, i == kind ? 1 : 0);
    }
  }
  return family;
}

MetricFamily Allowed(const ServerMetrics& figures) {
  MetricFamily family =
      Family("table_staleness_allowed",
             "What the table's mode allows (steps in bounded, updates in gba; +Inf: any)", MetricType::Gauge);
  for (const TableInfo& table : figures.tables) {
    Add(&family, {{"table", table.config().name()}}, AllowedStaleness(table.config().update_mode()));
  }
  return family;
}

// A metric whose value is one number of the statistics.
template <typename Statistics>
struct Figure {
  const char* name;
  const char* help;
  MetricType type;
  double (*value)(const Statistics&);
};

template <auto field, typename Statistics>
double Of(const Statistics& statistics) {
  return static_cast<double>((statistics.*field)());
}

constexpr MetricType kGauge = MetricType::Gauge, kCounter = MetricType::Counter;

constexpr Figure<ServerStatistics> kServerMetrics[] = {
    {"server_uptime_seconds", "Since the server started", kGauge, Of<&ServerStatistics::uptime_s>},
    {"server_cpu_seconds_total", "Of the process, user and system", kCounter, Of<&ServerStatistics::cpu_s>},
    {"server_resident_bytes", "Memory of the process", kGauge, Of<&ServerStatistics::rss_bytes>},
    {"server_open_sockets", "Of the process", kGauge, Of<&ServerStatistics::open_sockets>},
    {"server_parked_calls", "Calls that wait for other workers", kGauge, Of<&ServerStatistics::parked_calls>},
    {"server_parked_bytes", "Their requests, in bytes", kGauge, Of<&ServerStatistics::parked_bytes>},
    {"server_kept_bytes", "Acknowledged pushes that wait for others, in bytes", kGauge,
     Of<&ServerStatistics::kept_bytes>},
    {"server_max_parked_bytes", "What the two may come to; more is refused", kGauge,
     Of<&ServerStatistics::max_parked_bytes>},
    {"checkpoint_saves_total", "Checkpoints that this process has saved", kCounter,
     Of<&ServerStatistics::checkpoint_saves>},
    {"checkpoint_files_total", "Their table files", kCounter, Of<&ServerStatistics::checkpoint_files>},
    {"checkpoint_delta_files_total", "Table files that hold only what has changed since the one before",
     kCounter, Of<&ServerStatistics::checkpoint_delta_files>},
    {"checkpoint_bytes", "Of this server's part of the last checkpoint", kGauge,
     Of<&ServerStatistics::checkpoint_bytes>},
    {"checkpoint_longest_pause_seconds", "For which pushes waited for a checkpoint", kGauge,
     Of<&ServerStatistics::longest_checkpoint_pause_s>},
    {"checkpoint_async_saves_total", "Checkpoints that were written while pushes went on", kCounter,
     Of<&ServerStatistics::checkpoint_async_saves>},
    {"checkpoint_copied_bytes", "Most memory of rows that were copied because they changed meanwhile", kGauge,
     Of<&ServerStatistics::checkpoint_copied_bytes>},
    {"subscription_calls_total", "Calls of subscribers that were answered", kCounter,
     Of<&ServerStatistics::subscription_calls>},
    {"subscription_rows_total", "Rows in the answers", kCounter, Of<&ServerStatistics::subscription_rows>},
    {"subscription_bytes_total", "The answers, in bytes", kCounter,
     Of<&ServerStatistics::subscription_bytes>},
    {"subscription_waiting_calls", "Calls of subscribers that wait for a change: these have everything",
     kGauge, Of<&ServerStatistics::subscription_waiting>},
    {"subscription_cpu_seconds_total", "Of the thread that answers subscribers", kCounter,
     Of<&ServerStatistics::subscription_cpu_s>},
};

double LogFailed(const DurabilityInfo& info) { return info.failure().empty() ? 0 : 1; }

constexpr Figure<DurabilityInfo> kDurabilityMetrics[] = {
    {"log_failed", "1 while the log takes no records: its disk is full, or has failed", kGauge, LogFailed},
    {"log_position", "Records of the server's log", kCounter, Of<&DurabilityInfo::log_position>},
    {"log_durable_position", "Those that are safe", kCounter, Of<&DurabilityInfo::durable_position>},
    {"log_bytes", "Log since the last snapshot, in bytes", kGauge, Of<&DurabilityInfo::log_bytes>},
    {"log_written_bytes_total", "Log written by this process, in bytes", kCounter,
     Of<&DurabilityInfo::written_bytes>},
    {"log_groups_total", "Groups of records written at once", kCounter, Of<&DurabilityInfo::syncs>},
    {"log_longest_sync_seconds", "Since the server started", kGauge, Of<&DurabilityInfo::longest_sync_s>},
    {"log_waits_total", "Pushes that waited for space in the log's queue", kCounter,
     Of<&DurabilityInfo::log_waits>},
    {"log_term", "Lives of the server", kGauge, Of<&DurabilityInfo::term>},
    {"snapshots_total", "Snapshots completed by this process", kCounter, Of<&DurabilityInfo::snapshots>},
    {"snapshot_longest_pause_seconds", "For which pushes waited", kGauge,
     Of<&DurabilityInfo::longest_snapshot_pause_s>},
    {"recovery_seconds", "Restoring the snapshot and replaying the log at the start", kGauge,
     Of<&DurabilityInfo::recovery_s>},
};

double IsPrimary(const ReplicaStatus& s) { return s.role() == tandem::v1::REPLICA_ROLE_PRIMARY ? 1 : 0; }

double InSync(const ReplicaStatus& s) { return IsPrimary(s) * s.placement().in_sync_size(); }

double Learners(const ReplicaStatus& s) {
  double learners = 0;
  for (const auto& link : s.links()) learners += link.in_sync() ? 0 : 1;
  return learners;
}

double UnsentBytes(const ReplicaStatus& s) {
  double bytes = 0;
  for (const auto& link : s.links()) bytes = std::max(bytes, static_cast<double>(link.unsent_bytes()));
  return bytes;
}

// Returns the records that the slowest follower in sync, or this follower, has not applied.
double LagRecords(const ReplicaStatus& s) {
  const auto behind = [](uint64_t position, uint64_t applied) {
    return static_cast<double>(position - std::min(position, applied));
  };
  if (IsPrimary(s) == 0) return behind(s.primary_position(), s.applied_position());
  double lag = 0;
  for (const auto& link : s.links()) {
    if (link.in_sync()) lag = std::max(lag, behind(s.log_position(), link.applied_position()));
  }
  return lag;
}

double SilentSeconds(const ReplicaStatus& s) {
  uint64_t silent = IsPrimary(s) != 0 ? 0 : s.silent_ms();
  for (const auto& link : s.links()) {
    if (link.in_sync()) silent = std::max<uint64_t>(silent, link.silent_ms());
  }
  return static_cast<double>(silent) * 1e-3;
}

constexpr Figure<ReplicaStatus> kFailoverMetrics[] = {
    {"failover_primary", "1 if this process is its shard's primary", kGauge, IsPrimary},
    {"failover_serving", "1 if it answers pulls and pushes", kGauge,
     [](const ReplicaStatus& s) { return s.serving() ? 1.0 : 0.0; }},
    {"failover_term", "Number of the shard's primary, as this process knows it", kGauge,
     [](const ReplicaStatus& s) { return static_cast<double>(s.placement().term()); }},
    {"failover_takeovers_total", "Takeovers of the shard after deaths", kCounter,
     [](const ReplicaStatus& s) { return static_cast<double>(s.placement().failovers()); }},
    {"failover_handovers_total", "Planned hand-overs of the shard", kCounter,
     [](const ReplicaStatus& s) { return static_cast<double>(s.placement().handovers()); }},
    {"failover_in_sync", "Followers that may take over, told by the primary", kGauge, InSync},
    {"failover_learners", "Copies that are not in sync yet, told by the primary", kGauge, Learners},
    {"failover_position", "Records of the shard's log that this process has", kGauge,
     Of<&ReplicaStatus::log_position>},
    {"failover_lag_records", "Records that the slowest follower in sync, or this follower, has not applied",
     kGauge, LagRecords},
    {"failover_unsent_bytes", "Most log that one copy has not stored", kGauge, UnsentBytes},
    {"failover_silent_seconds",
     "Since this follower has heard the primary, or the primary a follower in sync", kGauge, SilentSeconds},
    {"failover_takeover_seconds", "Duration of the takeover by which this process became the primary", kGauge,
     [](const ReplicaStatus& s) { return static_cast<double>(s.takeover_ms()) * 1e-3; }},
    {"follower_reads_total", "Read-only pulls that this process has answered as a follower", kCounter,
     Of<&ReplicaStatus::follower_reads>},
    {"follower_reads_refused_total", "Read-only pulls that it has sent to the primary because of its lag",
     kCounter, Of<&ReplicaStatus::refused_follower_reads>},
    {"follower_read_lag_seconds",
     "How far the rows of this follower may be behind the primary's; 0: it is no follower, or cannot tell",
     kGauge, [](const ReplicaStatus& s) { return static_cast<double>(s.read_lag_us()) * 1e-6; }},
    {"failover_handover_pause_seconds",
     "For how long calls waited when this process became the primary by a hand-over", kGauge,
     [](const ReplicaStatus& s) { return static_cast<double>(s.handover_pause_ms()) * 1e-3; }},
};

constexpr Figure<TableStatistics> kTableMetrics[] = {
    {"table_rows", "Rows in memory", kGauge, Of<&TableStatistics::rows>},
    {"table_bytes", "Memory held for the table: rows, index, slack", kGauge, Of<&TableStatistics::bytes>},
    {"table_version", "Updates applied", kGauge, Of<&TableStatistics::version>},
    {"table_pulls_total", "Calls that read the table", kCounter, Of<&TableStatistics::pulls>},
    {"table_pushes_total", "Calls that updated it", kCounter, Of<&TableStatistics::pushes>},
    {"table_pulled_rows_total", "Rows read for training", kCounter, Of<&TableStatistics::pulled_rows>},
    {"table_pushed_rows_total", "Gradients applied", kCounter, Of<&TableStatistics::pushed_rows>},
    {"table_unchanged_rows_total", "Rows not sent because the caller's copies served", kCounter,
     Of<&TableStatistics::unchanged_rows>},
    {"table_unasked_rows_total", "Rows that callers' copies served without asking", kCounter,
     Of<&TableStatistics::unasked_rows>},
    {"table_pull_answer_bytes_total", "Rows sent, in bytes", kCounter,
     Of<&TableStatistics::pull_answer_bytes>},
    {"table_push_request_bytes_total", "Ids and gradients received, in bytes", kCounter,
     Of<&TableStatistics::push_request_bytes>},
    {"table_missing_rows_total", "Gradients whose row is gone or was never admitted", kCounter,
     Of<&TableStatistics::missing_rows>},
    {"table_refused_rows_total", "Gradients whose id admission did not want", kCounter,
     Of<&TableStatistics::refused_rows>},
    {"table_refused_pushes_total", "Pushes with gradients that are no numbers", kCounter,
     Of<&TableStatistics::refused_pushes>},
    {"table_admitted_rows_total", "Rows made", kCounter, Of<&TableStatistics::admitted_rows>},
    {"table_evicted_rows_total", "Rows that left memory", kCounter, Of<&TableStatistics::evicted_rows>},
    {"table_stale_pushes_total", "Pushes left out of an update for their staleness (gba)", kCounter,
     Of<&TableStatistics::stale_pushes>},
    {"table_kept_pushes", "Acknowledged pushes that wait for others", kGauge,
     Of<&TableStatistics::kept_pushes>},
    {"table_kept_bytes", "Their ids and gradients, in bytes", kGauge, Of<&TableStatistics::kept_bytes>},
    {"table_spilled_rows", "Rows on disk", kGauge, Of<&TableStatistics::spilled_rows>},
    {"table_spilled_bytes", "Bytes on disk", kGauge, Of<&TableStatistics::spilled_bytes>},
    {"table_spill_reads_total", "Rows brought back from disk", kCounter, Of<&TableStatistics::spill_reads>},
    {"table_spill_writes_total", "Rows written to disk", kCounter, Of<&TableStatistics::spill_writes>},
    {"table_longest_pause_seconds", "The longest that a part of the table was locked against all calls",
     kGauge, [](const TableStatistics& s) { return s.longest_pause_us() * 1e-6; }},
};

MetricFamily Info(const ServerStatistics& s) {
  MetricFamily family = Family("server_info", "Always 1; says which server this is", kGauge);
  Add(&family, {{"index", absl::StrCat(s.index())}, {"servers", absl::StrCat(s.num_servers())}}, 1);
  return family;
}

MetricFamily Told(const Figure<ServerStatistics>& figure, const ServerMetrics& figures) {
  MetricFamily family = Family(figure.name, figure.help, figure.type);
  Add(&family, {}, figure.value(figures.server));
  return family;
}

MetricFamily Told(const Figure<DurabilityInfo>& figure, const ServerMetrics& figures) {
  MetricFamily family = Family(figure.name, figure.help, figure.type);
  Add(&family, {}, figure.value(figures.durability));
  return family;
}

MetricFamily Told(const Figure<ReplicaStatus>& figure, const ServerMetrics& figures) {
  MetricFamily family = Family(figure.name, figure.help, figure.type);
  Add(&family, {}, figure.value(figures.failover));
  return family;
}

MetricFamily Told(const Figure<TableStatistics>& figure, const ServerMetrics& figures) {
  MetricFamily family = Family(figure.name, figure.help, figure.type);
  for (const TableInfo& table : figures.tables) {
    Add(&family, {{"table", table.config().name()}}, figure.value(table.statistics()));
  }
  return family;
}

}  // namespace

std::vector<MetricFamily> MakeMetricFamilies(const ServerMetrics& figures) {
  std::vector<MetricFamily> families;
  families.push_back(Info(figures.server));
  for (const auto& figure : kServerMetrics) families.push_back(Told(figure, figures));
  if (figures.durability.enabled()) {
    for (const auto& figure : kDurabilityMetrics) families.push_back(Told(figure, figures));
  }
  if (figures.failover.role() != tandem::v1::REPLICA_ROLE_UNSPECIFIED) {
    for (const auto& figure : kFailoverMetrics) families.push_back(Told(figure, figures));
  }
  for (const auto& figure : kTableMetrics) families.push_back(Told(figure, figures));
  families.push_back(Latency(figures, "pull_latency_seconds",
                             "Pulls, from arrival to answer, waiting for other workers included",
                             &TableStatistics::pull_latency));
  families.push_back(Latency(figures, "push_latency_seconds", "Pushes, from arrival to acknowledgement",
                             &TableStatistics::push_latency));
  for (const auto make : {Staleness, RowStaleness, Allowed, Mode}) families.push_back(make(figures));
  return families;
}

}  // namespace tandem::cli
