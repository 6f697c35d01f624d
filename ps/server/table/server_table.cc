// SPDX-License-Identifier: Apache-2.0
#include "ps/server/table/server_table.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ps/server/table/merged_update.h"
#include "ps/server/table/replay_filter.h"
#include "tandem/v1/durability.pb.h"

namespace tandem::ps {
namespace {

// Returns a generation larger than any before it of this server, in this process or an earlier one.
uint64_t NewGeneration(uint64_t before) {
  return std::max(before + 1, static_cast<uint64_t>(absl::GetCurrentTimeNanos()));
}

uint64_t StalenessOf(uint64_t version, uint64_t pulled_version) {
  return version > pulled_version ? version - pulled_version : 0;
}

}  // namespace

ServerTable::ServerTable(v1::TableConfig config, std::shared_ptr<TableStorage> storage, BufferPool* buffers,
                         Helpers* helpers, bool assigns_positions,
                         std::shared_ptr<std::atomic<int64_t>> measured_tables)
    : created_config_(std::move(config)),
      buffers_(buffers),
      helpers_(helpers),
      assigns_positions_(assigns_positions),
      row_staleness_(std::move(measured_tables)),
      order_(&created_config_.name(), created_config_.update_mode(), created_config_.num_workers(),
             created_config_.first_worker()),
      storage_(std::move(storage)),
      generation_(NewGeneration(0)) {}

std::optional<uint32_t> ServerTable::WorkerIndex(uint32_t rank) const {
  const uint32_t first = created_config_.first_worker();
  if (rank < first || rank - first >= num_workers()) return std::nullopt;
  return rank - first;
}

absl::Status ServerTable::CheckRank(uint32_t rank, absl::string_view who) const {
  if (WorkerIndex(rank).has_value()) return absl::OkStatus();
  {
    absl::MutexLock lock(&mutex_);
    if (order_.mode().kind() == v1::UpdateMode::ASYNC) return absl::OkStatus();
  }
  const uint32_t first = created_config_.first_worker();
  return absl::InvalidArgumentError(
      absl::StrCat(who, " has ", num_workers(), " workers, the first of which has rank ", first,
                   ": while it is not async, other processes may only read it (read_only)"));
}

v1::TableConfig ServerTable::config() const {
  v1::TableConfig config = created_config_;
  absl::MutexLock lock(&mutex_);
  *config.mutable_update_mode() = order_.mode();
  return config;
}

v1::TableInfo ServerTable::Info(size_t hottest) const {
  v1::TableInfo info;
  *info.mutable_config() = config();
  v1::TableStatistics* statistics = info.mutable_statistics();
  counters_.Export(hottest, statistics);
  row_staleness_.Counts().ToProto(statistics->mutable_row_staleness());
  const std::shared_ptr<TableStorage> rows = storage();
  const StorageStatistics held = rows->Statistics();
  statistics->set_rows(held.rows);
  statistics->set_bytes(held.bytes);
  statistics->set_bytes_per_row(
      held.rows == 0 ? 0.0 : static_cast<double>(held.bytes) / static_cast<double>(held.rows));
  statistics->set_admitted_rows(held.admitted_rows);
  statistics->set_refused_rows(held.refused_rows);
  statistics->set_evicted_rows(held.evicted_rows);
  statistics->set_longest_pause_us(held.longest_pause_us);
  statistics->set_spilled_rows(held.spilled_rows);
  statistics->set_spilled_bytes(held.spilled_bytes);
  statistics->set_spill_reads(held.spill_reads);
  statistics->set_spill_writes(held.spill_writes);
  statistics->set_version(version());
  statistics->set_kept_bytes(waiting_bytes());
  absl::MutexLock lock(&mutex_);
  statistics->set_kept_pushes(order_.waiting_pushes());
  return info;
}

std::shared_ptr<TableStorage> ServerTable::storage() const {
  absl::MutexLock lock(&mutex_);
  return storage_;
}

ServerTable::View ServerTable::Look() const {
  absl::MutexLock lock(&mutex_);
  // The number of an update under way is larger than the clock when it began. So every update numbered up to
  // the least of those clocks is done.
  const uint64_t applied = this->version();
  const uint64_t version = under_way_.empty() ? applied : std::min(*under_way_.begin(), applied);
  return {storage_, version, applied, generation_, order_.sync()};
}

ServerTable::WriteScope::WriteScope(ServerTable* table) : table_(*table) {
  absl::MutexLock lock(&table_.mutex_);
  begun_ = table_.under_way_.insert(table_.storage_->clock());
}

ServerTable::WriteScope::~WriteScope() {
  absl::MutexLock lock(&table_.mutex_);
  table_.under_way_.erase(begun_);
  table_.writes_.fetch_add(1, std::memory_order_acq_rel);
}

bool ServerTable::Ready(uint64_t step) const {
  absl::MutexLock lock(&mutex_);
  return ReadyLocked(step);
}

bool ServerTable::ReadyLocked(uint64_t step) const {
  return dropped_ || order_.PullMayRun(step) || order_.FirstAwaited(step, left_).has_value();
}

bool ServerTable::ReadyOrWait(uint64_t step, uint64_t ticket, Waiter waiter) {
  absl::MutexLock lock(&mutex_);
  if (ReadyLocked(step)) return true;
  waiting_pulls_.push_back({step, ticket, std::move(waiter)});
  return false;
}

void ServerTable::Drop(std::vector<Waiter>* released) {
  absl::MutexLock lock(&mutex_);
  dropped_ = true;
  for (WaitingPull& pull : waiting_pulls_) released->push_back(std::move(pull.waiter));
  waiting_pulls_.clear();
}

void ServerTable::SetWorkersThatLeft(const std::set<uint32_t>& workers, std::vector<Waiter>* released) {
  absl::MutexLock lock(&mutex_);
  left_ = workers;
  if (!left_.empty()) some_left_ = true;
  CollectReadyLocked(released);
}

absl::Status ServerTable::CheckPull(uint64_t step, uint32_t worker) const {
  if (dropped_.load(std::memory_order_acquire)) {
    return absl::NotFoundError(absl::StrCat("table '", name(), "' was dropped while the call waited for it"));
  }
  if (!some_left_.load(std::memory_order_acquire)) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  if (order_.PullMayRun(step)) return absl::OkStatus();
  const std::string why = order_.WhyWaiting(step, worker);
  const std::optional<uint32_t> awaited = order_.FirstAwaited(step, left_);
  // The worker was started again meanwhile.
  if (!awaited.has_value()) return absl::UnavailableError(why);
  return absl::FailedPreconditionError(
      absl::StrCat(why, ", and worker ", *awaited,
                   " has left the job: it had fewer batches, or ended early. With uneven inputs use "
                   "torch.distributed.algorithms.Join, or mode async"));
}

void ServerTable::Forget(uint64_t ticket) {
  std::vector<WaitingPull> gone;  // destroyed outside the lock
  absl::MutexLock lock(&mutex_);
  auto first = std::stable_partition(waiting_pulls_.begin(), waiting_pulls_.end(),
                                     [ticket](const WaitingPull& pull) { return pull.ticket != ticket; });
  std::move(first, waiting_pulls_.end(), std::back_inserter(gone));
  waiting_pulls_.erase(first, waiting_pulls_.end());
}

std::string ServerTable::WhyWaiting(uint64_t step, uint32_t worker) const {
  absl::MutexLock lock(&mutex_);
  return order_.WhyWaiting(step, worker);
}

absl::Status ServerTable::CheckPush(uint32_t worker, uint64_t step) const {
  absl::MutexLock lock(&mutex_);
  return order_.CheckPush(worker, step);
}

absl::Status ServerTable::CheckDeferredGradients(uint32_t worker) const {
  absl::MutexLock lock(&mutex_);
  return order_.CheckDeferredGradients(worker);
}

bool ServerTable::IsAhead(uint64_t step) const {
  absl::MutexLock lock(&mutex_);
  return order_.IsAhead(step);
}

UpdatePosition ServerTable::Assign(TablePush* push) {
  if (!assigns_positions_) return push->position;
  absl::MutexLock lock(&mutex_);
  push->position = order_.Assign(*push);
  return push->position;
}

UpdatePosition ServerTable::PositionOf(uint32_t worker, uint64_t step) const {
  absl::MutexLock lock(&mutex_);
  return order_.PositionOf(worker, step);
}

void ServerTable::Enqueue(TablePush push) {
  waiting_bytes_.fetch_add(push.memory_bytes, std::memory_order_relaxed);
  absl::MutexLock lock(&mutex_);
  order_.Add(std::move(push));
}

absl::StatusOr<uint64_t> ServerTable::Apply(TableStorage& storage, absl::Span<const TablePush* const> pushes,
                                            bool sync) const {
  float share = 0;
  for (const TablePush* push : pushes) share += push->batch_share;
  // The pushes of all workers are the whole global batch, whatever their shares add up to in floats.
  if (sync && pushes.size() == num_workers()) share = 1.0f;
  share = std::min(share, 1.0f);
  if (filter_ == nullptr || std::none_of(pushes.begin(), pushes.end(), [this](const TablePush* push) {
        return filter_->Concerns(push->log_position);
      })) {
    return ApplyMerged(storage, dim(), pushes, share, *buffers_, helpers_);
  }
  std::vector<TablePush> rest;
  std::vector<const TablePush*> rests;
  for (const TablePush* push : pushes) rest.push_back(filter_->Rest(*push, dim()));
  for (const TablePush& push : rest) rests.push_back(&push);
  return ApplyMerged(storage, dim(), rests, share, *buffers_, helpers_);
}

void ServerTable::CountApplied(const TablePush& push, uint64_t missing, uint64_t before) {
  counters_.AddAppliedPush(push.ids.size(), missing, StalenessOf(before, push.pulled_version));
}

void ServerTable::ApplyReadyLocked(std::vector<Waiter>* released) {
  if (order_.gba()) {
    while (std::optional<std::vector<TablePush>> batch = order_.BeginBatch()) {
      ApplyBatchLocked(*std::move(batch));
    }
    return;
  }
  while (const std::optional<UpdateOrder::Update> update = order_.Begin()) {
    const absl::Span<const TablePush* const> pushes = update->pushes;
    const std::shared_ptr<TableStorage> storage = storage_;
    const auto begun = under_way_.insert(storage->clock());
    const bool sync = order_.sync();
    mutex_.Unlock();
    const absl::StatusOr<uint64_t> missing = Apply(*storage, pushes, sync);
    std::vector<RowStalenessMeter::Segments> segments;
    const uint64_t before = sync ? version_.fetch_add(1, std::memory_order_acq_rel)
                                 : row_staleness_.CountUpdate(pushes, &version_, &segments);
    segments.resize(pushes.size());
    for (size_t i = 0; i < pushes.size(); ++i) {
      CountApplied(*pushes[i], i == 0 ? missing.value_or(0) : 0, before);
    }
    mutex_.Lock();
    under_way_.erase(begun);
    std::vector<TablePush> done = order_.Finish(*update);
    for (const TablePush& push : done) {
      waiting_bytes_.fetch_sub(push.memory_bytes, std::memory_order_relaxed);
    }
    CollectReadyLocked(released);
    mutex_.Unlock();
    for (size_t i = 0; i < done.size(); ++i) {
      if (done[i].settled) done[i].settled(missing, segments[i]);
    }
    done.clear();
    mutex_.Lock();
  }
}

void ServerTable::ApplyBatchLocked(std::vector<TablePush> batch) {
  const std::shared_ptr<TableStorage> storage = storage_;
  const uint64_t allowed = order_.mode().staleness();
  mutex_.Unlock();
  const uint64_t before = version();
  std::vector<const TablePush*> fresh;
  std::vector<bool> stale;
  std::vector<size_t> fresh_index;  // [batch]: of the pushes that are not stale, in `fresh`
  for (const TablePush& push : batch) {
    fresh_index.push_back(fresh.size());
    const uint64_t staleness = StalenessOf(before, push.pulled_version);
    stale.push_back(push.position.update != 0 ? push.position.stale : staleness > allowed);
    if (stale.back()) {
      counters_.AddStalePush(staleness);
    } else {
      fresh.push_back(&push);
    }
  }
  // An update of which nothing is left counts, too: versions must be those of the other servers.
  const absl::StatusOr<uint64_t> missing =
      fresh.empty() ? storage->Apply({}, nullptr, {}) : Apply(*storage, fresh, /*sync=*/false);
  std::vector<RowStalenessMeter::Segments> segments;
  row_staleness_.CountUpdate(fresh, &version_, &segments);
  segments.resize(fresh.size());
  for (size_t i = 0; i < fresh.size(); ++i) {
    CountApplied(*fresh[i], i == 0 ? missing.value_or(0) : 0, before);
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    if (!batch[i].settled) continue;
    if (stale[i] && missing.ok()) {
      batch[i].settled(uint64_t{0}, {});
    } else {
      batch[i].settled(missing, stale[i] ? RowStalenessMeter::Segments() : segments[fresh_index[i]]);
    }
  }
  mutex_.Lock();
  order_.FinishBatch(batch);
  for (const TablePush& push : batch) {
    waiting_bytes_.fetch_sub(push.memory_bytes, std::memory_order_relaxed);
  }
  mutex_.Unlock();
  batch.clear();
  mutex_.Lock();
}

void ServerTable::CollectReadyLocked(std::vector<Waiter>* released) {
  for (size_t i = 0; i < waiting_pulls_.size();) {
    if (ReadyLocked(waiting_pulls_[i].step)) {
      released->push_back(std::move(waiting_pulls_[i].waiter));
      waiting_pulls_[i] = std::move(waiting_pulls_.back());
      waiting_pulls_.pop_back();
    } else {
      ++i;
    }
  }
}

std::vector<ServerTable::Waiter> ServerTable::Drain() {
  std::vector<Waiter> released;
  std::vector<TablePush::Settled> settled;
  {
    absl::MutexLock lock(&mutex_);
    ApplyReadyLocked(&released);
    order_.CollectBlocked(&settled);
  }
  for (auto& done : settled) done(uint64_t{0}, {});
  return released;
}

void ServerTable::FlushLocked() {
  while (std::optional<std::vector<TablePush>> batch = order_.BeginPartialBatch()) {
    ApplyBatchLocked(*std::move(batch));
  }
}

void ServerTable::Flush() {
  absl::MutexLock lock(&mutex_);
  FlushLocked();
  if (order_.gba()) order_.ReopenBatch(version());
}

void ServerTable::SetFirstStep(uint64_t step) {
  absl::MutexLock lock(&mutex_);
  order_.Restore(/*version=*/0, std::vector<uint64_t>(num_workers(), step));
}

void ServerTable::SetUpdateMode(const v1::UpdateMode& mode, std::vector<Waiter>* released) {
  absl::MutexLock lock(&mutex_);
  FlushLocked();
  const bool was_sync = order_.sync();
  order_.SetMode(mode);
  // One at a time and the lowest step first, so that pushes that waited to be merged go in rank order.
  while (const std::optional<TablePush> push = order_.TakeLowestStep()) {
    waiting_bytes_.fetch_sub(push->memory_bytes, std::memory_order_relaxed);
    const TablePush* const alone = &*push;
    // The push was acknowledged before: an error shows in the table's next calls.
    const uint64_t missing = Apply(*storage_, {&alone, 1}, was_sync).value_or(0);
    CountApplied(*push, missing, version_.fetch_add(1, std::memory_order_acq_rel));
    order_.AdvanceClock(*push);
  }
  row_staleness_.Forget();  // it has not seen these updates, nor those of SYNC
  order_.StartBatch(version());
  ApplyReadyLocked(released);
  CollectReadyLocked(released);
}

absl::Status ServerTable::Describe(v1::TableFileHeader* header) const {
  *header->mutable_config() = config();
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<std::vector<uint64_t>> clocks = order_.Save();
  if (!clocks.ok()) return clocks.status();
  header->mutable_worker_clock()->Add(clocks->begin(), clocks->end());
  header->set_version(version());
  return absl::OkStatus();
}

void ServerTable::Install(std::shared_ptr<TableStorage> storage, uint64_t version,
                          const std::vector<uint64_t>& clocks, std::vector<Waiter>* released) {
  std::shared_ptr<TableStorage> old = storage;  // destroyed outside the lock
  absl::MutexLock lock(&mutex_);
  std::swap(storage_, old);
  generation_ = NewGeneration(generation_);
  version_.store(version, std::memory_order_release);
  row_staleness_.Forget();
  waiting_bytes_.fetch_sub(order_.Restore(version, clocks), std::memory_order_relaxed);
  CollectReadyLocked(released);
}

void ServerTable::SaveSnapshot(v1::SnapshotTable* to) const {
  *to->mutable_config() = created_config_;
  to->set_version(version());
  to->set_row_floats(storage()->row_floats());
  absl::MutexLock lock(&mutex_);
  *to->mutable_update_mode() = order_.mode();
  to->set_generation(generation_);
  *to->mutable_order() = order_.SaveState(dim(), filter_.get());
}

std::vector<uint64_t> ServerTable::QueuedLogPositions() const {
  absl::MutexLock lock(&mutex_);
  return order_.QueuedPositions();
}

void ServerTable::RestoreSnapshot(const v1::SnapshotTable& from, std::shared_ptr<TableStorage> storage,
                                  std::shared_ptr<const ReplayFilter> filter) {
  filter_ = std::move(filter);
  version_.store(from.version(), std::memory_order_release);
  RaiseGeneration(from.generation());
  absl::MutexLock lock(&mutex_);
  storage_ = std::move(storage);
  order_.SetMode(from.update_mode());
  waiting_bytes_.store(order_.RestoreState(from.order()), std::memory_order_relaxed);
}

uint64_t ServerTable::generation() const {
  absl::MutexLock lock(&mutex_);
  return generation_;
}

void ServerTable::RaiseGeneration(uint64_t before) {
  absl::MutexLock lock(&mutex_);
  generation_ = NewGeneration(std::max(before, generation_));
}

}  // namespace tandem::ps
