// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/replication.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/counted.h"
#include "base/logging.h"
#include "base/status.h"
#include "ps/replicated/client_row_home.h"
#include "ps/table.h"

namespace tandem::worker {
namespace {

// The counts that a worker sends for each segment of a table, as raw bytes: all processes run the same
// program.
struct SegmentOfWorker {
  ps::RowStalenessCounts staleness;
  SegmentCounts served, served_in_epoch;
};
static_assert(std::is_trivially_copyable_v<SegmentOfWorker>);

// Returns the bytes of a row's values on the wire.
uint64_t WireRowBytes(v1::ValueFormat format, uint64_t dim) {
  if (format == v1::VALUES_F32) return sizeof(float) * dim;
  return format == v1::VALUES_INT8 ? dim + sizeof(float) : 2 * dim;
}

// Returns the steps by which gradients are late in asynchronous training.
double ExpectedDelay(const TrainSpec& train) {
  // A batch waits for those that were looked up before it, and for the one that is computed meanwhile.
  uint64_t steps = std::min<uint64_t>(train.max_in_flight, train.lookahead + uint64_t{1});
  if (train.mode.kind() == v1::UpdateMode::BOUNDED)
    steps = std::min<uint64_t>(steps, train.mode.staleness() + uint64_t{1});
  return static_cast<double>(steps);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replication>> Replication::Create(const JobSpec& job, const Schema& schema,
                                                                 const TrainingPlan& plan, ps::Client* client,
                                                                 collectives::ProcessGroup* group) {
  std::unique_ptr<Replication> replication(new Replication(job, plan, client, group));
  for (const SparseFeature& feature : schema.sparse) replication->feature_names_.push_back(feature.column);
  if (job.train.mode.kind() == v1::UpdateMode::SYNC) return replication;
  if (group->rank() == 0) {
    for (const std::string& note : plan.notes) LogInfo(note);
  }
  const auto synchronous = [](const auto& table) { return table.starts_synchronously; };
  if (absl::c_none_of(plan.replicas, synchronous)) return replication;
  const HotRowsSpec& hot = job.train.hot_rows;
  replication->home_ = std::make_unique<ps::ClientRowHome>(client);
  TANDEM_ASSIGN_OR_RETURN(
      replication->tables_,
      ps::ReplicatedTables::Create(
          plan.replicas,
          {.hot_set = {.min_staleness = hot.min_row_staleness, .budget_bytes = hot.budget},
           .rank = group->rank(),
           .world_size = group->world_size(),
           .all_gather = [group](absl::string_view bytes) { return group->AllGatherBytes(bytes); },
           .first_interval = hot.first_steps,
           .max_interval = hot.every_steps,
           .expected_delay = ExpectedDelay(job.train)},
          replication->home_.get()));
  return replication;
}

Replication::Replication(const JobSpec& job, const TrainingPlan& plan, ps::Client* client,
                         collectives::ProcessGroup* group)
    : job_(job), plan_(plan), client_(client), group_(group), served_(NoneServed(plan.lookup)) {}

absl::StatusOr<std::map<std::string, std::vector<uint64_t>>> Replication::WriteBack() {
  std::map<std::string, std::vector<uint64_t>> by_table;
  if (tables_ == nullptr) return by_table;
  TANDEM_RETURN_IF_ERROR(tables_->WriteBack());
  std::vector<std::vector<uint64_t>> ids = tables_->ids();
  for (size_t t = 0; t < ids.size(); ++t) {
    if (!ids[t].empty()) by_table[plan_.tables[t].name()] = std::move(ids[t]);
  }
  return by_table;
}

absl::Status Replication::Restore(const std::map<std::string, std::vector<uint64_t>>& ids) {
  if (tables_ == nullptr) return absl::OkStatus();
  std::vector<std::vector<uint64_t>> by_table(plan_.tables.size());
  for (size_t t = 0; t < by_table.size(); ++t) {
    const auto found = ids.find(plan_.tables[t].name());
    if (found != ids.end()) by_table[t] = found->second;
  }
  return tables_->Restore(by_table);
}

absl::Status Replication::BeginStart() {
  if (tables_ == nullptr) return absl::OkStatus();
  return tables_->BeginStart();
}

absl::Status Replication::EndStart() {
  if (tables_ == nullptr) return absl::OkStatus();
  return tables_->EndStart();
}

absl::StatusOr<std::vector<FeatureReport>> Replication::OwnFeatures() {
  std::vector<std::vector<ps::RowStalenessCounts>> measured;
  for (const v1::TableConfig& table : plan_.tables) {
    TANDEM_ASSIGN_OR_RETURN(measured.emplace_back(), client_->RowStalenessStatistics(table.name()));
  }
  return ReportFeatures(plan_.lookup, feature_names_, measured, NoneServed(plan_.lookup));
}

absl::Status Replication::AfterStep(RunReport* report) {
  if (job_.train.mode.kind() == v1::UpdateMode::SYNC || measured_) return absl::OkStatus();
  if (!report->start.has_value()) report->start = StartReport{.synchronous = tables_ != nullptr};
  StartReport& start = *report->start;
  if (starting()) {
    ++start.steps;
    return absl::OkStatus();
  }
  if (++asynchronous_steps_ == 1 && tables_ != nullptr && group_->rank() == 0) {
    uint64_t rows = 0;
    for (size_t t = 0; t < plan_.tables.size(); ++t) rows += tables_->statistics(t).rows;
    LogInfo(absl::StrCat("started synchronously, for ", Counted(start.steps, "step"), "; from now on ",
                         report->mode, ", with ", Counted(rows, "replicated row")));
  }
  if (asynchronous_steps_ < job_.train.hot_rows.first_steps) return absl::OkStatus();
  measured_ = true;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<FeatureReport> features, OwnFeatures());
  if (group_->rank() == 0) {
    // Nobody knows yet what the next choice will do for other rows.
    Warn(features, /*only_decided=*/true, report);
  }
  if (tables_ != nullptr) return absl::OkStatus();
  start.steps = asynchronous_steps_;
  const auto stalest = absl::c_max_element(features, LessStale);
  if (stalest != features.end()) start.stalest = *stalest;
  for (const v1::TableConfig& table : plan_.tables) {
    TANDEM_RETURN_IF_ERROR(client_->ResetRowStalenessStatistics(table.name()));
  }
  return absl::OkStatus();
}

absl::Status Replication::AddEpoch(const PassStats& stats, const ServedCounts& served, RunReport* report) {
  report->replica_bytes += stats.replica_bytes;
  if (job_.train.mode.kind() == v1::UpdateMode::SYNC) {
    if (group_->rank() == 0) WarnOfChangedModes(report);
    return absl::OkStatus();
  }
  std::vector<SegmentOfWorker> mine;
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<ps::RowStalenessCounts> measured,
                            client_->RowStalenessStatistics(plan_.tables[t].name()));
    for (size_t s = 0; s < served[t].size(); ++s) {
      mine.push_back(
          {s < measured.size() ? measured[s] : ps::RowStalenessCounts{}, served[t][s], stats.served[t][s]});
    }
  }
  const size_t bytes = mine.size() * sizeof(SegmentOfWorker);
  TANDEM_ASSIGN_OR_RETURN(
      const std::vector<std::string> gathered,
      group_->AllGatherBytes(absl::string_view(reinterpret_cast<const char*>(mine.data()), bytes)));
  std::vector<std::vector<ps::RowStalenessCounts>> measured(plan_.tables.size());
  ServedCounts sums = NoneServed(plan_.lookup);
  for (size_t t = 0; t < measured.size(); ++t) measured[t].resize(sums[t].size());
  for (const std::string& theirs : gathered) {
    if (theirs.size() != bytes) return absl::DataLossError("a worker sent malformed row staleness");
    std::vector<SegmentOfWorker> segments(mine.size());
    std::memcpy(static_cast<void*>(segments.data()), theirs.data(), bytes);
    size_t i = 0;
    for (size_t t = 0; t < measured.size(); ++t) {
      for (size_t s = 0; s < measured[t].size(); ++s, ++i) {
        measured[t][s].Add(segments[i].staleness);
        sums[t][s].Add(segments[i].served);
        served_[t][s].Add(segments[i].served_in_epoch);
      }
    }
  }
  report->features = ReportFeatures(plan_.lookup, feature_names_, measured, sums);
  if (group_->rank() == 0) Warn(report->features, /*only_decided=*/false, report);
  return absl::OkStatus();
}

void Replication::WarnOfChangedModes(RunReport* report) {
  const absl::StatusOr<std::vector<v1::TableInfo>> tables = client_->ListTables();
  if (!tables.ok()) {
    LogDebug(absl::StrCat("the tables' modes are not known: ", tables.status().message()));
    return;
  }
  for (const v1::TableInfo& table : *tables) {
    const std::string& name = table.config().name();
    const bool ours = absl::c_any_of(plan_.tables, [&](const auto& config) { return config.name() == name; });
    const v1::UpdateMode& mode = table.config().update_mode();
    if (!ours || mode.kind() == v1::UpdateMode::SYNC || !warned_.insert({name, ""}).second) continue;
    const std::string warning = absl::StrCat("table '", name, "' is now in mode ", ps::FormatUpdateMode(mode),
                                             ", but this run began in mode sync and replicates no rows: "
                                             "those that are updated often may lose quality. "
                                             "Start it again with '--resume latest --set train.mode=",
                                             mode.kind() == v1::UpdateMode::GBA ? "gba" : "async", "'");
    LogWarning(warning);
    report->warnings.push_back(warning);
  }
}

void Replication::Warn(const std::vector<FeatureReport>& features, bool only_decided, RunReport* report) {
  const bool over_budget = tables_ != nullptr && tables_->refused() > 0;
  for (const FeatureReport& feature : features) {
    if (only_decided && !over_budget && feature.placement != ps::Placement::kSharded) continue;
    const std::string warning = RowStalenessWarning(feature, over_budget);
    if (warning.empty() || !warned_.insert({feature.table, feature.feature}).second) continue;
    LogWarning(warning);
    report->warnings.push_back(warning);
  }
}

void Replication::AddTable(size_t t, TableReport* table) const {
  if (tables_ == nullptr || tables_->table(t) == nullptr) return;
  const ps::ReplicationStatistics now = tables_->statistics(t);
  ReplicationReport replication{.rows = now.rows, .bytes = now.bytes, .joined = now.joined, .left = now.left};
  for (const SegmentCounts& segment : served_[t]) replication.served.Add(segment);
  const uint64_t rows = replication.served.replicated, dim = plan_.tables[t].dim();
  replication.saved_pull_bytes = rows * (sizeof(uint64_t) + WireRowBytes(plan_.wires[t].pull_values, dim));
  replication.saved_push_bytes = rows * (sizeof(uint64_t) + WireRowBytes(plan_.wires[t].push_values, dim));
  table->replication = replication;
}

}  // namespace tandem::worker
