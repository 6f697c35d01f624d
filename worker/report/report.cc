// SPDX-License-Identifier: Apache-2.0
#include "worker/report/report.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ps/table.h"
#include "worker/report/report_json.h"

namespace tandem::worker {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const Quality& quality) {
  return {{"auc", quality.auc}, {"logloss", quality.logloss}, {"examples", quality.examples}};
}

struct HoldQuantiles {
  double median_ms, p99_ms, longest_ms;
};

// Requires at least one duration, in seconds.
HoldQuantiles QuantilesOf(std::vector<double> holds) {
  std::sort(holds.begin(), holds.end());
  const auto at = [&](double quantile) {
    return 1e3 * holds[static_cast<size_t>(quantile * static_cast<double>(holds.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.99), at(1)};
}

std::string Thousands(uint64_t value) {
  std::string digits = absl::StrCat(value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, ",");
  return digits;
}

double BytesPerRow(const TableReport& table) {
  return table.rows == 0 ? 0.0 : static_cast<double>(table.bytes) / static_cast<double>(table.rows);
}

double Percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

Json ToJson(const ps::CacheStatistics& cache) {
  return {{"lookups", cache.lookups},
          {"unasked", cache.locally_served},
          {"unchanged", cache.unchanged},
          {"refreshed", cache.refreshed},
          {"missed", cache.missed},
          {"admitted", cache.admitted},
          {"refused", cache.refused},
          {"evicted", cache.evicted},
          {"forgotten", cache.forgotten},
          {"rows", cache.rows},
          {"capacity", cache.capacity},
          {"bytes", cache.bytes},
          {"request_bytes", cache.request_bytes},
          {"answer_bytes", cache.response_bytes},
          {"plain_request_bytes", cache.plain_request_bytes},
          {"plain_answer_bytes", cache.plain_response_bytes},
          {"age_mean", cache.age_mean},
          {"age_max", cache.age_max},
          {"held_gradients", cache.held_gradients}};
}

Json ToJson(const ReplicationReport& replication) {
  return {{"rows", replication.rows},
          {"bytes", replication.bytes},
          {"joined", replication.joined},
          {"left", replication.left},
          {"lookup_share", Percent(replication.served.replicated_ids, replication.served.ids) / 100},
          {"saved_pull_bytes", replication.saved_pull_bytes},
          {"saved_push_bytes", replication.saved_push_bytes}};
}

constexpr const char* kPlacements[] = {"auto", "sharded", "replicated"};

Json ToJson(const FeatureReport& feature) {
  return {{"table", feature.table},
          {"feature", feature.feature},
          {"placement", kPlacements[static_cast<int>(feature.placement)]},
          {"row_staleness_mean", feature.row_staleness.Mean()},
          {"row_staleness_p99", feature.row_staleness.Quantile(0.99)},
          {"row_staleness_max", feature.row_staleness.max},
          {"measured_rows", feature.row_staleness.rows},
          {"replicated_share", feature.replicated_share()}};
}

Json ToJson(const StartReport& start) {
  Json json = {{"synchronous", start.synchronous}, {"steps", start.steps}};
  if (!start.synchronous) json["stalest"] = ToJson(start.stalest);
  return json;
}

}  // namespace

nlohmann::ordered_json StagesToJson(const StageTimes& times, uint64_t steps) {
  auto ms = [steps](double seconds) { return steps == 0 ? 0.0 : seconds * 1e3 / static_cast<double>(steps); };
  return {{"wait_rows", ms(times.wait_rows)},
          {"gather", ms(times.gather)},
          {"forward", ms(times.forward)},
          {"backward", ms(times.backward)},
          {"wait_reduce", ms(times.wait_reduce)},
          {"optimizer", ms(times.optimizer)},
          {"change_replicas", ms(times.change)},
          {"beside_read", ms(times.concurrent.read)},
          {"beside_dedupe", ms(times.concurrent.dedupe)},
          {"beside_permit", ms(times.concurrent.permit)},
          {"beside_pull_send", ms(times.concurrent.send)},
          {"beside_scatter", ms(times.concurrent.scatter)},
          {"beside_push_send", ms(times.concurrent.push)}};
}

TableReport SummarizeTable(const std::string& name,
                           const std::vector<std::vector<tandem::v1::TableInfo>>& servers) {
  TableReport report{.name = name};
  double weighted = 0, pushes = 0;
  for (const auto& server : servers) {
    for (const tandem::v1::TableInfo& info : server) {
      if (info.config().name() != name) continue;
      const tandem::v1::TableStatistics& s = info.statistics();
      report.dim = info.config().dim();
      report.rows += s.rows();
      report.bytes += s.bytes();
      report.rows_per_shard.push_back(s.rows());
      report.staleness_max = std::max(report.staleness_max, s.staleness_max());
      report.mode = ps::FormatUpdateMode(info.config().update_mode());
      report.stale_pushes += s.stale_pushes();
      report.missing_rows += s.missing_rows();
      report.refused_pushes += s.refused_pushes();
      report.pulled_bytes += s.pull_answer_bytes();
      report.pushed_bytes += s.push_request_bytes();
      if (static_cast<int>(report.staleness_histogram.size()) < s.staleness_histogram_size()) {
        report.staleness_histogram.resize(s.staleness_histogram_size());
      }
      double count = 0;
      for (int i = 0; i < s.staleness_histogram_size(); ++i) {
        report.staleness_histogram[i] += s.staleness_histogram(i);
        count += static_cast<double>(s.staleness_histogram(i));
      }
      weighted += s.staleness_mean() * count;
      pushes += count;
    }
  }
  if (pushes > 0) report.staleness_mean = weighted / pushes;
  return report;
}

std::string FormatMetric(double value) { return std::isnan(value) ? "n/a" : absl::StrFormat("%.4f", value); }

std::string FormatReport(const RunReport& report) {
  std::string out = "\n";
  absl::StrAppendFormat(&out, "%s: %s, %s, %d worker%s, %d parameter server%s\n", report.job, report.model,
                        report.mode, report.workers, report.workers == 1 ? "" : "s", report.servers,
                        report.servers == 1 ? "" : "s");
  absl::StrAppendFormat(&out, "  %-34s %10s %10s\n", "on the test split", "AUC", "logloss");
  auto line = [&](const std::string& name, const Quality& quality) {
    absl::StrAppendFormat(&out, "  %-34s %10s %10s\n", name, FormatMetric(quality.auc),
                          FormatMetric(quality.logloss));
  };
  for (const BaselineReport& baseline : report.baselines) line(baseline.name, baseline.test);
  line(absl::StrCat("tandem ", report.model,
                    report.tested_epoch > 0 ? absl::StrCat(" (epoch ", report.tested_epoch, ")") : ""),
       report.test);
  absl::StrAppendFormat(&out, "  %-34s %10s samples/s over %d epochs, %.1f s in all%s\n", "training speed",
                        Thousands(static_cast<uint64_t>(report.samples_per_s)), report.epochs.size(),
                        report.seconds, report.stopped_early ? ", stopped early" : "");
  for (const TableReport& table : report.tables) {
    absl::StrAppendFormat(
        &out, "  %-34s %10s rows, %.1f bytes/row, per shard %s\n",
        absl::StrCat("table '", table.name, "', dim ", table.dim), Thousands(table.rows), BytesPerRow(table),
        absl::StrJoin(table.rows_per_shard, " + ",
                      [](std::string* to, uint64_t rows) { absl::StrAppend(to, Thousands(rows)); }));
    absl::StrAppendFormat(&out, "  %-34s %10.2f updates on average, %d at most (%s)\n",
                          "  measured staleness", table.staleness_mean, table.staleness_max, table.mode);
    if (table.replication.has_value() && table.replication->rows > 0) {
      const ReplicationReport& replicas = *table.replication;
      absl::StrAppendFormat(&out,
                            "  %-34s %10s rows, %.1f MB a worker, %.1f%% of lookups; saved %.1f MB of pulls, "
                            "%.1f MB of pushes\n",
                            "  replicated in the workers", Thousands(replicas.rows),
                            static_cast<double>(replicas.bytes) / 1e6,
                            Percent(replicas.served.replicated_ids, replicas.served.ids),
                            static_cast<double>(replicas.saved_pull_bytes) / 1e6,
                            static_cast<double>(replicas.saved_push_bytes) / 1e6);
    }
    if (table.stale_pushes > 0) {
      absl::StrAppendFormat(&out, "  %-34s %10s pushes, for their staleness\n", "  left out",
                            Thousands(table.stale_pushes));
    }
    if (table.feedback.rows > 0) {
      absl::StrAppendFormat(&out, "  %-34s %10s rows in %.1f MB, %s dropped\n", "  error feedback of rank 0",
                            Thousands(table.feedback.rows), static_cast<double>(table.feedback.bytes) / 1e6,
                            Thousands(table.feedback.dropped_rows));
    }
    if (table.cache.has_value()) {
      const ps::CacheStatistics& cache = *table.cache;
      absl::StrAppendFormat(
          &out, "  %-34s %9.1f%% of rows; %.1f%% of pulled bytes saved; rows %.1f updates old, %d at most\n",
          "  served by workers' caches", Percent(cache.hits(), cache.lookups),
          100.0 - Percent(cache.request_bytes + cache.response_bytes,
                          cache.plain_request_bytes + cache.plain_response_bytes),
          cache.age_mean, cache.age_max);
    }
    if (table.missing_rows + table.refused_pushes > 0) {
      absl::StrAppendFormat(&out, "  %-34s %10d gradients of missing rows, %d pushes refused\n", "  dropped",
                            table.missing_rows, table.refused_pushes);
    }
  }
  if (report.start.has_value() && report.start->synchronous) {
    absl::StrAppendFormat(&out, "  %-34s %10s step%s, then %s\n", "synchronous start",
                          Thousands(report.start->steps), report.start->steps == 1 ? "" : "s", report.mode);
  } else if (report.start.has_value() && report.start->stalest.row_staleness.rows > 0) {
    const FeatureReport& feature = report.start->stalest;
    absl::StrAppendFormat(&out,
                          "  %-34s %10.2f updates on average, p99 %d, in %s steps: feature '%s' of table "
                          "'%s'\n",
                          "row staleness of the start", feature.row_staleness.Mean(),
                          feature.row_staleness.Quantile(0.99), Thousands(report.start->steps),
                          feature.feature, feature.table);
  }
  const auto stalest = std::max_element(report.features.begin(), report.features.end(), LessStale);
  if (stalest != report.features.end() && stalest->row_staleness.rows > 0) {
    absl::StrAppendFormat(&out, "  %-34s %10.2f updates on average, p99 %d: feature '%s' of table '%s'\n",
                          "highest row staleness", stalest->row_staleness.Mean(),
                          stalest->row_staleness.Quantile(0.99), stalest->feature, stalest->table);
  }
  for (const std::string& warning : report.warnings) {
    absl::StrAppendFormat(&out, "  warning: %s\n", warning);
  }
  if (report.malformed_lines > 0) {
    absl::StrAppendFormat(&out, "  %-34s %10s (see the warnings above)\n", "malformed lines skipped",
                          Thousands(report.malformed_lines));
  }
  if (!report.checkpoint_holds.empty()) {
    const HoldQuantiles holds = QuantilesOf(report.checkpoint_holds);
    absl::StrAppendFormat(&out, "  %-34s median %.1f ms, p99 %.1f ms, longest %.1f ms, of %d; %d left out\n",
                          "held by checkpoints within epochs", holds.median_ms, holds.p99_ms,
                          holds.longest_ms, report.checkpoint_holds.size(), report.skipped_checkpoints);
  }
  if (!report.checkpoint.empty())
    absl::StrAppendFormat(&out, "  %-34s %s\n", "checkpoint", report.checkpoint);
  return out;
}

std::string ReportToJson(const RunReport& report) {
  Json json = {{"job", report.job},
               {"job_file", report.job_file},
               {"model", report.model},
               {"mode", report.mode},
               {"workers", report.workers},
               {"servers", report.servers},
               {"seed", report.seed},
               {"train_examples", report.train_examples},
               {"malformed_lines", report.malformed_lines},
               {"stopped_early", report.stopped_early},
               {"best_epoch", report.best_epoch},
               {"tested_epoch", report.tested_epoch},
               {"test", ToJson(report.test)},
               {"samples_per_s", report.samples_per_s},
               {"seconds", report.seconds},
               {"checkpoint", report.checkpoint}};
  if (!report.checkpoint_holds.empty()) {
    const HoldQuantiles holds = QuantilesOf(report.checkpoint_holds);
    json["checkpoint_holds"] = {{"count", report.checkpoint_holds.size()},
                                {"median_ms", holds.median_ms},
                                {"p99_ms", holds.p99_ms},
                                {"longest_ms", holds.longest_ms},
                                {"skipped", report.skipped_checkpoints}};
  }
  json["baselines"] = Json::array();
  for (const BaselineReport& baseline : report.baselines) {
    Json entry = ToJson(baseline.test);
    entry["name"] = baseline.name;
    json["baselines"].push_back(std::move(entry));
  }
  json["epochs"] = Json::array();
  for (const EpochReport& epoch : report.epochs) {
    json["epochs"].push_back({{"epoch", epoch.epoch},
                              {"step", epoch.step},
                              {"steps", epoch.steps},
                              {"examples", epoch.examples},
                              {"seconds", epoch.seconds},
                              {"samples_per_s", epoch.samples_per_s},
                              {"train_loss", epoch.train_loss},
                              {"learning_rate", epoch.learning_rate},
                              {"valid", ToJson(epoch.valid)},
                              {"best", epoch.best},
                              {"staleness_mean", epoch.staleness_mean},
                              {"ms_per_step", StagesToJson(epoch.times, epoch.steps)}});
  }
  json["tables"] = Json::array();
  for (const TableReport& table : report.tables) {
    json["tables"].push_back({{"name", table.name},
                              {"dim", table.dim},
                              {"rows", table.rows},
                              {"bytes", table.bytes},
                              {"bytes_per_row", BytesPerRow(table)},
                              {"rows_per_shard", table.rows_per_shard},
                              {"mode", table.mode},
                              {"staleness_mean", table.staleness_mean},
                              {"staleness_max", table.staleness_max},
                              {"stale_pushes", table.stale_pushes},
                              {"staleness_histogram", table.staleness_histogram},
                              {"missing_rows", table.missing_rows},
                              {"refused_pushes", table.refused_pushes},
                              {"pulled_bytes", table.pulled_bytes},
                              {"pushed_bytes", table.pushed_bytes},
                              {"feedback_rows", table.feedback.rows},
                              {"feedback_bytes", table.feedback.bytes},
                              {"feedback_dropped_rows", table.feedback.dropped_rows}});
  }
  for (size_t t = 0; t < report.tables.size(); ++t) {
    if (report.tables[t].cache.has_value()) json["tables"][t]["cache"] = ToJson(*report.tables[t].cache);
  }
  for (size_t t = 0; t < report.tables.size(); ++t) {
    if (!report.tables[t].replication.has_value()) continue;
    json["tables"][t]["replication"] = ToJson(*report.tables[t].replication);
  }
  if (report.start.has_value()) json["start"] = ToJson(*report.start);
  json["features"] = Json::array();
  for (const FeatureReport& feature : report.features) json["features"].push_back(ToJson(feature));
  json["replica_bytes"] = report.replica_bytes;
  json["warnings"] = report.warnings;
  return json.dump(2) + "\n";
}

absl::Status WriteReport(const RunReport& report, const std::string& path) {
  const std::string temporary = path + ".tmp";
  {
    std::ofstream out(temporary, std::ios::trunc);
    out << ReportToJson(report);
    out.close();
    if (!out) {
      return absl::UnavailableError(
          absl::StrCat("cannot write the report to '", temporary, "': ", std::strerror(errno)));
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot replace '", path, "': ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace tandem::worker
