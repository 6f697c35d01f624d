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
      Family("table_staleness",
             "Distribution of pushes by staleness: the number of updates of the table between a pull "
             "and the push that came of it.",
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
  MetricFamily family =
      Family("table_row_staleness",
             "Distribution of sampled gradients by row staleness: the number of updates of the row "
             "between its pull and the push.",
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
  MetricFamily family =
      Family("table_mode", "1 for the update mode that the table has, 0 for the others.", MetricType::Gauge);
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
             "Largest staleness that the table's update mode allows, in steps (bounded) or updates "
             "(gba); +Inf if any is allowed.",
             MetricType::Gauge);
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
    {"server_uptime_seconds", "Time since the parameter server started, in seconds.", kGauge,
     Of<&ServerStatistics::uptime_s>},
    {"server_open_sockets", "Number of sockets that the parameter server has open, listening ones included.",
     kGauge, Of<&ServerStatistics::open_sockets>},
    {"server_parked_calls",
     "Number of pulls and pushes that wait on the server for other workers or for a "
     "checkpoint.",
     kGauge, Of<&ServerStatistics::parked_calls>},
    {"server_parked_bytes", "Size of the requests of the calls that wait on the server, in bytes.", kGauge,
     Of<&ServerStatistics::parked_bytes>},
    {"server_kept_bytes",
     "Memory of acknowledged pushes that wait for the pushes of other workers, in bytes.", kGauge,
     Of<&ServerStatistics::kept_bytes>},
    {"server_max_parked_bytes",
     "Limit of the sum of tandem_server_parked_bytes and tandem_server_kept_bytes; the server "
     "refuses calls beyond it.",
     kGauge, Of<&ServerStatistics::max_parked_bytes>},
    {"checkpoint_saves_total", "Number of checkpoints that this process has saved.", kCounter,
     Of<&ServerStatistics::checkpoint_saves>},
    {"checkpoint_files_total", "Number of table files in the checkpoints that this process has saved.",
     kCounter, Of<&ServerStatistics::checkpoint_files>},
    {"checkpoint_delta_files_total",
     "Number of table files saved by this process that hold only what changed since the "
     "checkpoint before.",
     kCounter, Of<&ServerStatistics::checkpoint_delta_files>},
    {"checkpoint_bytes", "Size of this server's part of the last checkpoint, in bytes.", kGauge,
     Of<&ServerStatistics::checkpoint_bytes>},
    {"checkpoint_longest_pause_seconds", "Longest time for which pushes waited for a checkpoint, in seconds.",
     kGauge, Of<&ServerStatistics::longest_checkpoint_pause_s>},
    {"checkpoint_async_saves_total", "Number of checkpoints that were written while pushes went on.",
     kCounter, Of<&ServerStatistics::checkpoint_async_saves>},
    {"checkpoint_copied_bytes",
     "Largest memory of copies of rows that changed while a checkpoint was written, in bytes.", kGauge,
     Of<&ServerStatistics::checkpoint_copied_bytes>},
    {"subscription_calls_total", "Number of calls of subscribers (GetChanges) that the server has answered.",
     kCounter, Of<&ServerStatistics::subscription_calls>},
    {"subscription_rows_total", "Number of rows in the answers to subscribers.", kCounter,
     Of<&ServerStatistics::subscription_rows>},
    {"subscription_bytes_total", "Size of the answers to subscribers, in bytes.", kCounter,
     Of<&ServerStatistics::subscription_bytes>},
    {"subscription_waiting_calls",
     "Number of calls of subscribers that wait for a change because they have everything.", kGauge,
     Of<&ServerStatistics::subscription_waiting>},
    {"subscription_cpu_seconds_total", "Processor time of the thread that answers subscribers, in seconds.",
     kCounter, Of<&ServerStatistics::subscription_cpu_s>},
};

double LogFailed(const DurabilityInfo& info) { return info.failure().empty() ? 0 : 1; }

constexpr Figure<DurabilityInfo> kDurabilityMetrics[] = {
    {"log_failed",
     "1 while the server's log takes no records because its disk is full or has failed, else "
     "0.",
     kGauge, LogFailed},
    {"log_records_total", "Number of records of the server's log since its first start.", kCounter,
     Of<&DurabilityInfo::log_position>},
    {"log_durable_records_total", "Number of records of the server's log that are safe on the disk.",
     kCounter, Of<&DurabilityInfo::durable_position>},
    {"log_bytes", "Size of the server's log since the last snapshot, in bytes.", kGauge,
     Of<&DurabilityInfo::log_bytes>},
    {"log_written_bytes_total", "Size of the log records that this process has written, in bytes.", kCounter,
     Of<&DurabilityInfo::written_bytes>},
    {"log_groups_total", "Number of groups of log records that this process has written, each at once.",
     kCounter, Of<&DurabilityInfo::syncs>},
    {"log_longest_sync_seconds",
     "Longest time that one sync of the log took since the server started, in seconds.", kGauge,
     Of<&DurabilityInfo::longest_sync_s>},
    {"log_waits_total", "Number of pushes that waited for space in the queue of the log.", kCounter,
     Of<&DurabilityInfo::log_waits>},
    {"log_term", "Number of times that the server has started with this log.", kGauge,
     Of<&DurabilityInfo::term>},
    {"snapshots_total", "Number of snapshots that this process has completed.", kCounter,
     Of<&DurabilityInfo::snapshots>},
    {"snapshot_longest_pause_seconds", "Longest time for which pushes waited for a snapshot, in seconds.",
     kGauge, Of<&DurabilityInfo::longest_snapshot_pause_s>},
    {"recovery_seconds",
     "Time that restoring the snapshot and replaying the log took when the server started, in "
     "seconds.",
     kGauge, Of<&DurabilityInfo::recovery_s>},
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
    {"failover_primary", "1 if this process is the primary of its shard, else 0.", kGauge, IsPrimary},
    {"failover_serving", "1 if this process answers pulls and pushes of its shard, else 0.", kGauge,
     [](const ReplicaStatus& s) { return s.serving() ? 1.0 : 0.0; }},
    {"failover_term", "Number of the shard's current primary, counted from 1, as this process knows it.",
     kGauge, [](const ReplicaStatus& s) { return static_cast<double>(s.placement().term()); }},
    {"failover_takeovers_total",
     "Number of times that a follower took over the shard after its primary died.", kCounter,
     [](const ReplicaStatus& s) { return static_cast<double>(s.placement().failovers()); }},
    {"failover_handovers_total", "Number of planned hand-overs of the shard from one copy to another.",
     kCounter, [](const ReplicaStatus& s) { return static_cast<double>(s.placement().handovers()); }},
    {"failover_in_sync", "Number of followers that may take over the shard, reported by its primary.", kGauge,
     InSync},
    {"failover_learners", "Number of copies of the shard that are not in sync yet, reported by its primary.",
     kGauge, Learners},
    {"failover_position", "Number of records of the shard's log that this process has.", kGauge,
     Of<&ReplicaStatus::log_position>},
    {"failover_lag_records",
     "Number of log records that the slowest follower in sync (on a primary), or this "
     "follower, has not applied.",
     kGauge, LagRecords},
    {"failover_unsent_bytes",
     "Largest size of the log that one copy of the shard has not stored yet, in bytes.", kGauge, UnsentBytes},
    {"failover_silent_seconds",
     "Time since this follower heard the primary, or the primary the most silent follower in "
     "sync, in seconds.",
     kGauge, SilentSeconds},
    {"failover_takeover_seconds",
     "Time that the takeover took by which this process became the primary, in seconds; 0 if "
     "there was none.",
     kGauge, [](const ReplicaStatus& s) { return static_cast<double>(s.takeover_ms()) * 1e-3; }},
    {"follower_reads_total", "Number of read-only pulls that this process has answered as a follower.",
     kCounter, Of<&ReplicaStatus::follower_reads>},
    {"follower_reads_refused_total",
     "Number of read-only pulls that this follower has sent to the primary because of its "
     "lag.",
     kCounter, Of<&ReplicaStatus::refused_follower_reads>},
    {"follower_read_lag_seconds",
     "Time by which the rows of this follower may be behind those of the primary, in seconds; "
     "0 if it is no follower or cannot tell.",
     kGauge, [](const ReplicaStatus& s) { return static_cast<double>(s.read_lag_us()) * 1e-6; }},
    {"failover_handover_pause_seconds",
     "Time for which calls waited when this process became the primary by a hand-over, in "
     "seconds; 0 if it did not.",
     kGauge, [](const ReplicaStatus& s) { return static_cast<double>(s.handover_pause_ms()) * 1e-3; }},
};

constexpr Figure<TableStatistics> kTableMetrics[] = {
    {"table_rows", "Number of rows of the table in memory.", kGauge, Of<&TableStatistics::rows>},
    {"table_bytes", "Memory of the table in bytes: rows, index and unused capacity.", kGauge,
     Of<&TableStatistics::bytes>},
    {"table_version", "Number of updates that were applied to the table.", kGauge,
     Of<&TableStatistics::version>},
    {"table_pulls_total", "Number of pulls of the table.", kCounter, Of<&TableStatistics::pulls>},
    {"table_pushes_total", "Number of pushes to the table.", kCounter, Of<&TableStatistics::pushes>},
    {"table_pulled_rows_total", "Number of rows of the table that were read for training.", kCounter,
     Of<&TableStatistics::pulled_rows>},
    {"table_pushed_rows_total", "Number of gradients that were applied to rows of the table.", kCounter,
     Of<&TableStatistics::pushed_rows>},
    {"table_unchanged_rows_total",
     "Number of requested rows that were not sent because the caller's copies were recent "
     "enough.",
     kCounter, Of<&TableStatistics::unchanged_rows>},
    {"table_unasked_rows_total", "Number of rows that callers read from their own copies without a request.",
     kCounter, Of<&TableStatistics::unasked_rows>},
    {"table_pull_answer_bytes_total", "Size of the rows sent in answers to pulls, in bytes.", kCounter,
     Of<&TableStatistics::pull_answer_bytes>},
    {"table_push_request_bytes_total", "Size of the ids and gradients received in pushes, in bytes.",
     kCounter, Of<&TableStatistics::push_request_bytes>},
    {"table_missing_rows_total",
     "Number of gradients that were dropped because their row was evicted or never admitted.", kCounter,
     Of<&TableStatistics::missing_rows>},
    {"table_refused_rows_total",
     "Number of gradients that were dropped because the admission policy did not admit their "
     "id.",
     kCounter, Of<&TableStatistics::refused_rows>},
    {"table_refused_pushes_total",
     "Number of pushes that were refused because a gradient was NaN, infinite or 2^60 and "
     "more.",
     kCounter, Of<&TableStatistics::refused_pushes>},
    {"table_admitted_rows_total", "Number of rows of the table that were created.", kCounter,
     Of<&TableStatistics::admitted_rows>},
    {"table_evicted_rows_total", "Number of rows of the table that eviction removed from memory.", kCounter,
     Of<&TableStatistics::evicted_rows>},
    {"table_stale_pushes_total",
     "Number of pushes that a gba table left out of an update because they were too stale.", kCounter,
     Of<&TableStatistics::stale_pushes>},
    {"table_kept_pushes", "Number of acknowledged pushes that wait for the pushes of other workers.", kGauge,
     Of<&TableStatistics::kept_pushes>},
    {"table_kept_bytes",
     "Size of the ids and gradients of acknowledged pushes that wait for others, in bytes.", kGauge,
     Of<&TableStatistics::kept_bytes>},
    {"table_spilled_rows", "Number of rows of the table on disk.", kGauge,
     Of<&TableStatistics::spilled_rows>},
    {"table_spilled_bytes", "Size of the rows of the table on disk, in bytes.", kGauge,
     Of<&TableStatistics::spilled_bytes>},
    {"table_spill_reads_total", "Number of rows that were brought back from disk.", kCounter,
     Of<&TableStatistics::spill_reads>},
    {"table_spill_writes_total", "Number of rows that were written to disk.", kCounter,
     Of<&TableStatistics::spill_writes>},
    {"table_longest_pause_seconds",
     "Longest time for which a part of the table was locked against all calls, in seconds.", kGauge,
     [](const TableStatistics& s) { return s.longest_pause_us() * 1e-6; }},
};

MetricFamily Info(const ServerStatistics& s) {
  MetricFamily family =
      Family("server_info", "Always 1; the labels say which of how many servers this is.", kGauge);
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
  families.push_back(
      Latency(figures, "pull_latency_seconds",
              "Distribution of the times from a pull's arrival to its answer, waits for other workers "
              "included, in seconds.",
              &TableStatistics::pull_latency));
  families.push_back(
      Latency(figures, "push_latency_seconds",
              "Distribution of the times from a push's arrival to its acknowledgement, in seconds.",
              &TableStatistics::push_latency));
  for (const auto make : {Staleness, RowStaleness, Allowed, Mode}) families.push_back(make(figures));
  return families;
}

}  // namespace tandem::cli
