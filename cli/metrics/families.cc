#include "cli/metrics/families.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ps/latency_bins.h"

namespace tandem::cli {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
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

MetricFamily ServerMetric(const char* name, const char* help, MetricType type, double value) {
  MetricFamily family = Family(name, help, type);
  Add(&family, {}, value);
  return family;
}

template <typename Value>
MetricFamily TableMetric(const ServerFigures& figures, const char* name, const char* help, MetricType type,
                         Value value) {
  MetricFamily family = Family(name, help, type);
  for (const TableInfo& table : figures.tables) {
    Add(&family, {{"table", table.config().name()}}, static_cast<double>(value(table.statistics())));
  }
  return family;
}

// `upper(i)`: the bound that belongs to bin i; the last bin has none.
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

// Its bins, eight at a time: a series for each would be many.
std::vector<uint64_t> Octaves(const tandem::v1::LatencyHistogram& latency) {
  constexpr size_t kOctave = ps::kLatencyBinsPerOctave;
  std::vector<uint64_t> octaves(1 + (ps::kLatencyBins - 1) / kOctave);
  for (int bin = 0; bin < latency.counts_size(); ++bin) {
    octaves[std::min((bin + kOctave - 1) / kOctave, octaves.size() - 1)] += latency.counts(bin);
  }
  return octaves;
}

MetricFamily Latency(const ServerFigures& figures, const char* name, const char* help,
                     const tandem::v1::LatencyHistogram& (TableStatistics::*of)() const) {
  MetricFamily family = Family(name, help, MetricType::Histogram);
  for (const TableInfo& table : figures.tables) {
    const tandem::v1::LatencyHistogram& latency = (table.statistics().*of)();
    family.metric.push_back(Histogram(table.config().name(), Octaves(latency), latency.sum_us() * 1e-6,
                                      [](int octave) { return std::ldexp(1e-6, octave); }));
  }
  return family;
}

MetricFamily Staleness(const ServerFigures& figures) {
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

MetricFamily Mode(const ServerFigures& figures) {
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

MetricFamily Allowed(const ServerFigures& figures) {
  MetricFamily family =
      Family("table_staleness_allowed",
             "What the table's mode allows (steps in bounded, updates in gba; +Inf: any)", MetricType::Gauge);
  for (const TableInfo& table : figures.tables) {
    Add(&family, {{"table", table.config().name()}}, AllowedStaleness(table.config().update_mode()));
  }
  return family;
}

void AddTableFamilies(const ServerFigures& f, std::vector<MetricFamily>* to) {
  constexpr MetricType kGauge = MetricType::Gauge, kCounter = MetricType::Counter;
  using S = TableStatistics;
  const auto add = [&](const char* name, const char* help, MetricType type, auto value) {
    to->push_back(TableMetric(f, name, help, type, value));
  };
  add("table_rows", "Rows in memory", kGauge, [](const S& s) { return s.rows(); });
  add("table_bytes", "Memory held for the table: rows, index, slack", kGauge,
      [](const S& s) { return s.bytes(); });
  add("table_version", "Updates applied", kGauge, [](const S& s) { return s.version(); });
  add("table_pulls_total", "Calls that read the table", kCounter, [](const S& s) { return s.pulls(); });
  add("table_pushes_total", "Calls that updated it", kCounter, [](const S& s) { return s.pushes(); });
  add("table_pulled_rows_total", "Rows read for training", kCounter,
      [](const S& s) { return s.pulled_rows(); });
  add("table_pushed_rows_total", "Gradients applied", kCounter, [](const S& s) { return s.pushed_rows(); });
  add("table_unchanged_rows_total", "Rows not sent because the caller's copies served", kCounter,
      [](const S& s) { return s.unchanged_rows(); });
  add("table_unasked_rows_total", "Rows that callers' copies served without asking", kCounter,
      [](const S& s) { return s.unasked_rows(); });
  add("table_pull_answer_bytes_total", "Rows sent, in bytes", kCounter,
      [](const S& s) { return s.pull_answer_bytes(); });
  add("table_push_request_bytes_total", "Ids and gradients received, in bytes", kCounter,
      [](const S& s) { return s.push_request_bytes(); });
  add("table_missing_rows_total", "Gradients whose row is gone or was never admitted", kCounter,
      [](const S& s) { return s.missing_rows(); });
  add("table_refused_rows_total", "Gradients whose id admission did not want", kCounter,
      [](const S& s) { return s.refused_rows(); });
  add("table_refused_pushes_total", "Pushes with gradients that are no numbers", kCounter,
      [](const S& s) { return s.refused_pushes(); });
  add("table_admitted_rows_total", "Rows made", kCounter, [](const S& s) { return s.admitted_rows(); });
  add("table_evicted_rows_total", "Rows that left memory", kCounter,
      [](const S& s) { return s.evicted_rows(); });
  add("table_stale_pushes_total", "Pushes left out of an update for their staleness (gba)", kCounter,
      [](const S& s) { return s.stale_pushes(); });
  add("table_kept_pushes", "Acknowledged pushes that wait for others", kGauge,
      [](const S& s) { return s.kept_pushes(); });
  add("table_kept_bytes", "Their ids and gradients, in bytes", kGauge,
      [](const S& s) { return s.kept_bytes(); });
  add("table_spilled_rows", "Rows on disk", kGauge, [](const S& s) { return s.spilled_rows(); });
  add("table_spilled_bytes", "Bytes on disk", kGauge, [](const S& s) { return s.spilled_bytes(); });
  add("table_spill_reads_total", "Rows brought back from disk", kCounter,
      [](const S& s) { return s.spill_reads(); });
  add("table_spill_writes_total", "Rows written to disk", kCounter,
      [](const S& s) { return s.spill_writes(); });
  add("table_longest_pause_seconds", "The longest that a part of the table was locked against all calls",
      kGauge, [](const S& s) { return s.longest_pause_us() * 1e-6; });
}

}  // namespace

std::vector<MetricFamily> MakeFamilies(const ServerFigures& figures) {
  const tandem::v1::ServerStatistics& s = figures.server;
  constexpr MetricType kGauge = MetricType::Gauge, kCounter = MetricType::Counter;
  std::vector<MetricFamily> families;
  MetricFamily info = Family("server_info", "Always 1; says which server this is", kGauge);
  Add(&info, {{"index", absl::StrCat(s.index())}, {"servers", absl::StrCat(s.num_servers())}}, 1);
  families.push_back(std::move(info));
  families.push_back(ServerMetric("server_uptime_seconds", "Since the server started", kGauge, s.uptime_s()));
  families.push_back(
      ServerMetric("server_cpu_seconds_total", "Of the process, user and system", kCounter, s.cpu_s()));
  families.push_back(ServerMetric("server_resident_bytes", "Memory of the process", kGauge,
                                  static_cast<double>(s.rss_bytes())));
  families.push_back(
      ServerMetric("server_open_sockets", "Of the process", kGauge, static_cast<double>(s.open_sockets())));
  families.push_back(ServerMetric("server_parked_calls", "Calls that wait for other workers", kGauge,
                                  static_cast<double>(s.parked_calls())));
  families.push_back(ServerMetric("server_parked_bytes", "Their requests, in bytes", kGauge,
                                  static_cast<double>(s.parked_bytes())));
  families.push_back(ServerMetric("server_kept_bytes", "Acknowledged pushes that wait for others, in bytes",
                                  kGauge, static_cast<double>(s.kept_bytes())));
  families.push_back(ServerMetric("server_max_parked_bytes", "What the two may come to; more is refused",
                                  kGauge, static_cast<double>(s.max_parked_bytes())));
  AddTableFamilies(figures, &families);
  families.push_back(Latency(figures, "pull_latency_seconds",
                             "Pulls, from arrival to answer, waiting for other workers included",
                             &TableStatistics::pull_latency));
  families.push_back(Latency(figures, "push_latency_seconds", "Pushes, from arrival to acknowledgement",
                             &TableStatistics::push_latency));
  families.push_back(Staleness(figures));
  families.push_back(Allowed(figures));
  families.push_back(Mode(figures));
  return families;
}

}  // namespace tandem::cli
