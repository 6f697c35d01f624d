// SPDX-License-Identifier: Apache-2.0
#include "ps/replicated/replicated_tables.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ps/table.h"

namespace tandem::ps {
namespace {

// Ids that are remembered at most, for each table: more do not fit any sensible budget.
constexpr size_t kMaxRemembered = size_t{1} << 20;

void AppendIds(absl::Span<const uint64_t> ids, std::string* out) {
  const uint64_t count = ids.size();
  out->append(reinterpret_cast<const char*>(&count), sizeof(count));
  out->append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint64_t));
}

bool ConsumeIds(absl::string_view* bytes, std::vector<uint64_t>* ids) {
  uint64_t count;
  if (bytes->size() < sizeof(count)) return false;
  std::memcpy(&count, bytes->data(), sizeof(count));
  bytes->remove_prefix(sizeof(count));
  if (count > bytes->size() / sizeof(uint64_t)) return false;
  ids->resize(count);
  if (count > 0) std::memcpy(ids->data(), bytes->data(), count * sizeof(uint64_t));
  bytes->remove_prefix(count * sizeof(uint64_t));
  return true;
}

absl::Status Malformed(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("a worker sent malformed ", what, " of replicated rows"));
}

// Returns the updates of a table that one step of all workers makes.
double UpdatesPerStep(const v1::UpdateMode& mode, int workers) {
  if (mode.kind() == v1::UpdateMode::SYNC) return 1;
  if (mode.kind() != v1::UpdateMode::GBA || mode.global_batch() == 0) {
    return mode.kind() == v1::UpdateMode::GBA ? 1 : workers;
  }
  return static_cast<double>(workers) / mode.global_batch();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReplicatedTables>> ReplicatedTables::Create(
    std::vector<ReplicatedTableOptions> tables, ReplicationOptions options, RowHome* home) {
  std::vector<Table> made(tables.size());
  for (size_t t = 0; t < tables.size(); ++t) {
    if (tables[t].replicated) {
      TANDEM_ASSIGN_OR_RETURN(made[t].rows, ReplicatedRows::Create(tables[t].config, tables[t].l2_scope));
    }
    made[t].options = std::move(tables[t]);
  }
  return std::unique_ptr<ReplicatedTables>(new ReplicatedTables(std::move(made), std::move(options), home));
}

ReplicatedTables::ReplicatedTables(std::vector<Table> tables, ReplicationOptions options, RowHome* home)
    : tables_(std::move(tables)),
      options_(std::move(options)),
      home_(home),
      interval_(std::max<uint64_t>(1, options_.first_interval)) {}

void ReplicatedTables::RememberWanted(size_t t, absl::Span<const uint64_t> ids) {
  absl::MutexLock lock(&mutex_);
  Table& table = tables_[t];
  if (table.rows == nullptr) return;
  for (const uint64_t id : ids) {
    const bool full = table.wanted.size() >= kMaxRemembered;
    if (full && !table.wanted.contains(id)) continue;
    const bool is_new = table.wanted.insert(id).second;
    const uint32_t slot = table.rows->Find(id);
    if (slot != ReplicatedRows::kAbsent) {
      std::atomic_ref(table.wanted_slots[slot]).store(1, std::memory_order_relaxed);
      if (!is_new) continue;
    }
    if (table.queued.insert(id).second) table.newly_wanted.push_back(id);
  }
}

void ReplicatedTables::MarkWantedSlots(Table* table) {
  if (table->rows == nullptr) return;
  table->wanted_slots.clear();
  for (const uint64_t id : table->rows->ids()) {
    table->wanted_slots.push_back(table->wanted.contains(id) ? 1 : 0);
  }
}

void ReplicatedTables::RememberUnwanted(size_t t, absl::Span<const uint64_t> ids) {
  if (options_.rank != 0) return;
  absl::MutexLock lock(&mutex_);
  Table& table = tables_[t];
  for (const uint64_t id : ids) {
    if (table.unwanted.size() >= kMaxRemembered) return;
    table.unwanted.insert(id);
  }
}

absl::Status ReplicatedTables::SetModes(bool sync) {
  if (options_.rank != 0) return absl::OkStatus();
  for (const Table& table : tables_) {
    if (!table.options.starts_synchronously) continue;
    const v1::TableConfig& config = table.options.config;
    TANDEM_RETURN_IF_ERROR(home_->SetMode(config.name(), sync ? Sync() : config.update_mode()));
  }
  return absl::OkStatus();
}

absl::Status ReplicatedTables::BeginStart() {
  starting_ = true;
  scheduled_ = false;
  interval_ = std::max<uint64_t>(1, options_.first_interval);
  return Agree(SetModes(/*sync=*/true), "starting synchronously");
}

absl::Status ReplicatedTables::EndStart() {
  if (!starting_) return absl::OkStatus();
  starting_ = false;
  for (Table& table : tables_) table.counted.clear();
  return Agree(SetModes(/*sync=*/false), "ending the synchronous start");
}

void ReplicatedTables::CountBatch(size_t t, absl::Span<const uint64_t> ids) {
  Table& table = tables_[t];
  if (!starting_ || table.rows == nullptr) return;
  absl::MutexLock lock(&mutex_);
  for (const uint64_t id : ids) {
    // Ids that are in many batches come early, before the map is full.
    if (table.counted.size() < kMaxRemembered) {
      ++table.counted[id];
    } else if (const auto found = table.counted.find(id); found != table.counted.end()) {
      ++found->second;
    }
  }
}

uint64_t ReplicatedTables::NextChange(uint64_t step) {
  if (!scheduled_) {
    scheduled_ = true;
    start_step_ = step;
    next_change_ = step + interval_;
  }
  const bool any = absl::c_any_of(tables_, [](const Table& table) { return table.rows != nullptr; });
  if (!any && !starting_) return ~uint64_t{0};
  return std::max(next_change_, step);
}

absl::StatusOr<std::vector<std::string>> ReplicatedTables::AllGather(absl::string_view bytes) {
  if (options_.world_size == 1) return std::vector<std::string>{std::string(bytes)};
  return options_.all_gather(bytes);
}

absl::Status ReplicatedTables::Agree(const absl::Status& mine, absl::string_view what) {
  const std::string text =
      mine.ok() ? "" : absl::StrCat("rank ", options_.rank, ", ", what, ": ", mine.message());
  const absl::StatusOr<std::vector<std::string>> all = AllGather(text);
  // This worker's own error says more than the consequences that it has for others.
  if (!mine.ok()) return Annotate(mine, what);
  TANDEM_RETURN_IF_ERROR(all.status());
  for (const std::string& theirs : *all) {
    if (!theirs.empty()) return absl::AbortedError(theirs);
  }
  return absl::OkStatus();
}

double ReplicatedTables::UpdatesInStart(const Table& table, uint64_t step) const {
  return static_cast<double>(step - start_step_) *
         UpdatesPerStep(table.options.config.update_mode(), options_.world_size);
}

absl::StatusOr<double> ReplicatedTables::DelayOf(const Table& table) {
  const v1::TableConfig& config = table.options.config;
  if (!starting_) return home_->Delay(config.name());
  return options_.expected_delay * UpdatesPerStep(config.update_mode(), options_.world_size);
}

absl::StatusOr<ReplicatedTables::Gathered> ReplicatedTables::Gather(uint64_t step) {
  std::string mine;
  for (Table& table : tables_) {
    AppendIds(table.newly_wanted, &mine);
    table.newly_wanted.clear();
    table.queued.clear();
    std::vector<uint64_t> ids;
    if (!table.counted.empty()) {
      TANDEM_ASSIGN_OR_RETURN(const double delay, DelayOf(table));
      const double updates = UpdatesInStart(table, step);
      for (const auto& [id, count] : table.counted) {
        // If the sum over the workers is large enough, the count of one of them is more than its share. That
        // worker names the id, and all say below how often they have counted it.
        const double most = static_cast<double>(count) * options_.world_size;
        if (most * delay <= options_.hot_set.min_staleness * updates) continue;
        ids.push_back(id);
      }
    }
    AppendIds(ids, &mine);
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> all, AllGather(mine));
  Gathered gathered;
  gathered.wanted.resize(tables_.size());
  gathered.counted.resize(tables_.size());
  std::vector<std::set<uint64_t>> named(tables_.size());
  for (absl::string_view theirs : all) {
    for (size_t t = 0; t < tables_.size(); ++t) {
      std::vector<uint64_t> wanted, ids;
      if (!ConsumeIds(&theirs, &wanted) || !ConsumeIds(&theirs, &ids)) return Malformed("ids");
      for (const uint64_t id : wanted) {
        tables_[t].wanted.insert(id);
        gathered.wanted[t].push_back(id);
      }
      named[t].insert(ids.begin(), ids.end());
    }
  }
  if (absl::c_all_of(named, [](const std::set<uint64_t>& ids) { return ids.empty(); })) {
    for (Table& table : tables_) table.counted.clear();
    return gathered;
  }
  // All workers have the same named ids, in the same order.
  mine.clear();
  for (size_t t = 0; t < tables_.size(); ++t) {
    std::vector<uint64_t> counts;
    for (const uint64_t id : named[t]) {
      const auto found = tables_[t].counted.find(id);
      counts.push_back(found == tables_[t].counted.end() ? 0 : found->second);
    }
    tables_[t].counted.clear();
    AppendIds(counts, &mine);
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> all_counts, AllGather(mine));
  for (absl::string_view theirs : all_counts) {
    for (size_t t = 0; t < tables_.size(); ++t) {
      std::vector<uint64_t> counts;
      if (!ConsumeIds(&theirs, &counts) || counts.size() != named[t].size())
        return Malformed("counts of ids");
      size_t i = 0;
      for (const uint64_t id : named[t]) gathered.counted[t][id] += counts[i++];
    }
  }
  return gathered;
}

absl::StatusOr<std::vector<HotSetChange>> ReplicatedTables::Decide(uint64_t step, const Gathered& gathered) {
  std::vector<HotSetTable> tables(tables_.size());
  for (size_t t = 0; t < tables_.size(); ++t) {
    const Table& table = tables_[t];
    if (table.rows == nullptr) continue;
    const v1::TableConfig& config = table.options.config;
    const ReplicatedRows& rows = *table.rows;
    tables[t].bytes_per_row = rows.bytes_per_row();
    TANDEM_ASSIGN_OR_RETURN(const double delay, DelayOf(table));
    const double updates =
        static_cast<double>(rows.steps()) * UpdatesPerStep(config.update_mode(), options_.world_size);
    for (size_t slot = 0; slot < rows.size(); ++slot) {
      const uint64_t id = rows.ids()[slot];
      const double rate = updates == 0 ? 1.0 : std::min(1.0, rows.touches()[slot] / updates);
      if (table.unwanted.contains(id)) continue;  // leaves below
      tables[t].replicated.push_back({id, rate * delay, table.wanted.contains(id)});
    }
    absl::flat_hash_set<uint64_t> seen;
    for (const uint64_t id : gathered.wanted[t]) {
      if (rows.Find(id) == ReplicatedRows::kAbsent && seen.insert(id).second) {
        tables[t].candidates.push_back({id, 0.0, true});
      }
    }
    for (const auto& [id, count] : gathered.counted[t]) {
      if (rows.Find(id) != ReplicatedRows::kAbsent || table.unwanted.contains(id)) continue;
      const double rate = std::min(1.0, static_cast<double>(count) / UpdatesInStart(table, step));
      if (seen.insert(id).second) tables[t].candidates.push_back({id, rate * delay});
    }
    if (!table.options.by_staleness || starting_) continue;
    const uint64_t limit = options_.hot_set.budget_bytes / rows.bytes_per_row() + 1;
    TANDEM_ASSIGN_OR_RETURN(
        const std::vector<HotRow> hot,
        home_->FindHot(config.name(), options_.hot_set.min_staleness, limit + table.unwanted.size()));
    for (const HotRow& row : hot) {
      // The servers may still remember updates of rows that have been replicated since.
      if (rows.Find(row.id) != ReplicatedRows::kAbsent || table.unwanted.contains(row.id)) continue;
      if (seen.insert(row.id).second) tables[t].candidates.push_back(row);
    }
  }
  std::vector<HotSetChange> changes = DecideHotSet(tables, options_.hot_set, &refused_);
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (tables_[t].rows == nullptr) continue;
    for (const uint64_t id : tables_[t].rows->ids()) {
      if (tables_[t].unwanted.contains(id)) changes[t].removed.push_back(id);
    }
  }
  return changes;
}

absl::Status ReplicatedTables::Move(const std::vector<HotSetChange>& changes) {
  std::map<std::string, MovedRows> removed;
  for (size_t t = 0; t < tables_.size() && options_.rank == 0; ++t) {
    const Table& table = tables_[t];
    if (table.rows == nullptr || changes[t].removed.empty()) continue;
    std::vector<uint32_t> slots;
    for (const uint64_t id : changes[t].removed) slots.push_back(table.rows->Find(id));
    removed[table.options.config.name()] = table.rows->Read(slots);
  }
  if (!removed.empty()) TANDEM_RETURN_IF_ERROR(Annotate(home_->Write(removed), "moving rows to the servers"));
  if (starting_) TANDEM_RETURN_IF_ERROR(Annotate(SetModes(/*sync=*/false), "ending the synchronous start"));
  for (size_t t = 0; t < tables_.size(); ++t) {
    Table& table = tables_[t];
    const HotSetChange& change = changes[t];
    if (table.rows == nullptr) continue;
    const std::string& name = table.options.config.name();
    MovedRows added;
    if (!change.added.empty()) {
      absl::StatusOr<MovedRows> read = home_->Read(name, change.added);
      TANDEM_RETURN_IF_ERROR(Annotate(
          read.status(), absl::StrCat("moving rows of table '", name, "' from the servers to the workers")));
      added = *std::move(read);
    }
    TANDEM_RETURN_IF_ERROR(table.rows->Change(change.removed, added));
    table.joined += change.added.size();
    table.left += change.removed.size();
  }
  return absl::OkStatus();
}

absl::StatusOr<SetChange> ReplicatedTables::Change(uint64_t step) {
  interval_ = std::min(2 * interval_, std::max(options_.first_interval, options_.max_interval));
  next_change_ = step + interval_;
  scheduled_ = true;

  absl::MutexLock lock(&mutex_);
  TANDEM_ASSIGN_OR_RETURN(const Gathered gathered, Gather(step));

  // The byte in front tells a decision from an error.
  std::string decision;
  absl::Status decided;
  if (options_.rank == 0) {
    for (size_t t = 0; t < tables_.size() && decided.ok(); ++t) {
      if (tables_[t].rows != nullptr) decided = home_->Flush(tables_[t].options.config.name());
    }
    absl::StatusOr<std::vector<HotSetChange>> changes = std::vector<HotSetChange>();
    if (decided.ok()) {
      changes = Decide(step, gathered);
      decided = changes.status();
    }
    decision = decided.ok() ? "+" : absl::StrCat("-", decided.message());
    for (size_t t = 0; t < tables_.size() && decided.ok(); ++t) {
      AppendIds((*changes)[t].removed, &decision);
      AppendIds((*changes)[t].added, &decision);
    }
  }
  const absl::StatusOr<std::vector<std::string>> sent = AllGather(decision);
  TANDEM_RETURN_IF_ERROR(Annotate(decided, "choosing the rows to replicate"));
  TANDEM_RETURN_IF_ERROR(sent.status());
  absl::string_view bytes = (*sent)[0];
  if (bytes.empty()) return Malformed("a decision");
  if (bytes[0] == '-') {
    return absl::AbortedError(absl::StrCat("rank 0, choosing the rows to replicate: ", bytes.substr(1)));
  }
  bytes.remove_prefix(1);
  std::vector<HotSetChange> changes(tables_.size());
  SetChange total;
  for (HotSetChange& change : changes) {
    if (!ConsumeIds(&bytes, &change.removed) || !ConsumeIds(&bytes, &change.added)) {
      return Malformed("a decision");
    }
    total.joined += change.added.size();
    total.left += change.removed.size();
  }
  if (starting_ || total.joined + total.left > 0) {
    TANDEM_RETURN_IF_ERROR(Agree(Move(changes), "moving replicated rows"));
  }
  starting_ = false;
  for (Table& table : tables_) {
    if (table.rows == nullptr) continue;
    MarkWantedSlots(&table);
    table.rows->ForgetTouches();
    total.rows += table.rows->size();
  }
  return total;
}

absl::Status ReplicatedTables::Apply(uint64_t step, float learning_rate_factor) {
  for (const Table& table : tables_) {
    if (table.rows == nullptr || table.rows->size() == 0) continue;
    const double updates = static_cast<double>(step + 1) *
                           UpdatesPerStep(table.options.config.update_mode(), options_.world_size);
    TANDEM_RETURN_IF_ERROR(Annotate(
        table.rows->Apply(learning_rate_factor, std::max<uint64_t>(1, static_cast<uint64_t>(updates))),
        absl::StrCat("table '", table.options.config.name(), "', step ", step)));
  }
  return absl::OkStatus();
}

absl::Status ReplicatedTables::WriteBack() {
  std::map<std::string, MovedRows> rows;
  for (const Table& table : tables_) {
    if (table.rows == nullptr || table.rows->size() == 0) continue;
    std::vector<uint32_t> slots(table.rows->size());
    std::iota(slots.begin(), slots.end(), 0);
    rows[table.options.config.name()] = table.rows->Read(slots);
  }
  if (rows.empty()) return absl::OkStatus();
  return Annotate(home_->Write(rows), "writing the replicated rows back");
}

absl::Status ReplicatedTables::Restore(const std::vector<std::vector<uint64_t>>& ids) {
  absl::MutexLock lock(&mutex_);
  for (size_t t = 0; t < tables_.size(); ++t) {
    Table& table = tables_[t];
    if (table.rows == nullptr) continue;
    MovedRows added;
    if (t < ids.size() && !ids[t].empty()) {
      absl::StatusOr<MovedRows> read = home_->Read(table.options.config.name(), ids[t]);
      TANDEM_RETURN_IF_ERROR(Annotate(read.status(), absl::StrCat("reading the replicated rows of table '",
                                                                  table.options.config.name(), "'")));
      added = *std::move(read);
    }
    const std::vector<uint64_t> before(table.rows->ids().begin(), table.rows->ids().end());
    TANDEM_RETURN_IF_ERROR(table.rows->Change(before, added));
    MarkWantedSlots(&table);
    table.rows->ForgetTouches();
  }
  return absl::OkStatus();
}

std::vector<std::vector<uint64_t>> ReplicatedTables::ids() const {
  std::vector<std::vector<uint64_t>> ids(tables_.size());
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (tables_[t].rows == nullptr) continue;
    ids[t].assign(tables_[t].rows->ids().begin(), tables_[t].rows->ids().end());
  }
  return ids;
}

ReplicationStatistics ReplicatedTables::statistics(size_t t) const {
  const Table& table = tables_[t];
  ReplicationStatistics statistics;
  if (table.rows == nullptr) return statistics;
  statistics.rows = table.rows->size();
  statistics.bytes = statistics.rows * table.rows->bytes_per_row();
  statistics.joined = table.joined;
  statistics.left = table.left;
  return statistics;
}

}  // namespace tandem::ps
