#include "ps/server/table/server_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ps/trace_kinds.h"

namespace tandem::ps {
namespace {

std::string ModeName(const v1::UpdateMode& mode) {
  switch (mode.kind()) {
    case v1::UpdateMode::SYNC:
      return "sync";
    case v1::UpdateMode::BOUNDED:
      return absl::StrCat("bounded, staleness ", mode.staleness());
    case v1::UpdateMode::GBA:
      return absl::StrCat("gba, staleness ", mode.staleness(), ", global batch ", mode.global_batch());
    default:
      return "async";
  }
}

// Larger than any before of this server, in this process's life or an earlier one's.
uint64_t NewGeneration(uint64_t before) {
  return std::max(before + 1, static_cast<uint64_t>(absl::GetCurrentTimeNanos()));
}

uint64_t StalenessOf(uint64_t version, uint64_t pulled_version) {
  return version > pulled_version ? version - pulled_version : 0;
}

}  // namespace

ServerTable::ServerTable(v1::TableConfig config, std::shared_ptr<TableStorage> storage, BufferPool* buffers,
                         Helpers* helpers, bool places)
    : created_config_(std::move(config)),
      buffers_(buffers),
      helpers_(helpers),
      places_(places),
      mode_(created_config_.update_mode()),
      storage_(std::move(storage)),
      workers_(created_config_.num_workers()),
      generation_(NewGeneration(0)) {}

v1::TableConfig ServerTable::config() const {
  v1::TableConfig config = created_config_;
  absl::MutexLock lock(&mutex_);
  *config.mutable_update_mode() = mode_;
  return config;
}

v1::TableInfo ServerTable::Info(size_t hottest) const {
  v1::TableInfo info;
  *info.mutable_config() = config();
  v1::TableStatistics* statistics = info.mutable_statistics();
  counters_.Export(hottest, statistics);
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
  uint64_t kept = batch_.pushes();
  for (const Worker& worker : workers_) kept += worker.waiting.size();
  statistics->set_kept_pushes(kept);
  return info;
}

std::shared_ptr<TableStorage> ServerTable::storage() const {
  absl::MutexLock lock(&mutex_);
  return storage_;
}

ServerTable::View ServerTable::Look() const {
  absl::MutexLock lock(&mutex_);
  // Whatever has a number up to the least of these was under way before it, so it is done.
  const uint64_t applied = this->version();
  const uint64_t version = under_way_.empty() ? applied : std::min(*under_way_.begin(), applied);
  return {storage_, version, applied, generation_, mode_.kind() == v1::UpdateMode::SYNC};
}

uint64_t ServerTable::MinClockLocked() const {
  uint64_t min = ~uint64_t{0};
  for (const Worker& worker : workers_) min = std::min(min, worker.clock);
  return min;
}

bool ServerTable::ReadyLocked(uint64_t step) const {
  switch (mode_.kind()) {
    case v1::UpdateMode::SYNC:
      return MinClockLocked() >= step;
    case v1::UpdateMode::BOUNDED:
      return step <= mode_.staleness() || MinClockLocked() >= step - mode_.staleness();
    default:
      return true;
  }
}

bool ServerTable::Ready(uint64_t step) const {
  absl::MutexLock lock(&mutex_);
  return ReadyLocked(step);
}

bool ServerTable::IsAhead(uint64_t step) const {
  absl::MutexLock lock(&mutex_);
  if (mode_.kind() == v1::UpdateMode::GBA) return batch_.pushes() + 1 < GlobalBatchSizeLocked();
  return mode_.kind() != v1::UpdateMode::ASYNC && step > MinClockLocked();
}

bool ServerTable::ReadyOrWait(uint64_t step, uint64_t ticket, Waiter waiter) {
  absl::MutexLock lock(&mutex_);
  if (ReadyLocked(step)) return true;
  parked_.push_back(Parked{step, ticket, std::move(waiter)});
  return false;
}

void ServerTable::Forget(uint64_t ticket) {
  std::vector<Parked> gone;  // destroyed outside the lock
  absl::MutexLock lock(&mutex_);
  auto first = std::stable_partition(parked_.begin(), parked_.end(),
                                     [ticket](const Parked& parked) { return parked.ticket != ticket; });
  std::move(first, parked_.end(), std::back_inserter(gone));
  parked_.erase(first, parked_.end());
}

std::string ServerTable::WhyWaiting(uint64_t step, uint32_t worker) const {
  absl::MutexLock lock(&mutex_);
  const uint64_t slack = mode_.kind() == v1::UpdateMode::BOUNDED ? mode_.staleness() : 0;
  const uint64_t needed = step > slack ? step - slack : 0;
  constexpr size_t kNamed = 8;
  std::vector<std::string> missing;
  size_t unnamed = 0;
  for (uint32_t w = 0; w < workers_.size(); ++w) {
    uint64_t at = workers_[w].clock;
    while (workers_[w].waiting.count(at) > 0) ++at;
    if (at >= needed) continue;
    if (missing.size() < kNamed) {
      missing.push_back(absl::StrCat("the push of step ", at, " from worker ", w));
    } else {
      ++unnamed;
    }
  }
  std::string text =
      absl::StrCat("table '", name(), "': pull of step ", step, " by worker ", worker, " waits for ");
  if (missing.empty()) absl::StrAppend(&text, "updates that are being applied");
  for (size_t i = 0; i < missing.size(); ++i) absl::StrAppend(&text, i == 0 ? "" : ", ", missing[i]);
  if (unnamed > 0) absl::StrAppend(&text, " and of ", unnamed, " more workers");
  return absl::StrCat(text, " (", ModeName(mode_), ")");
}

absl::Status ServerTable::CheckPush(uint32_t worker, uint64_t step) const {
  absl::MutexLock lock(&mutex_);
  if (mode_.kind() == v1::UpdateMode::ASYNC || mode_.kind() == v1::UpdateMode::GBA) return absl::OkStatus();
  const Worker& state = workers_[worker];
  const auto next = [&] {
    uint64_t at = state.clock;
    while (state.waiting.count(at) > 0) ++at;
    return at;
  };
  if (state.waiting.count(step) > 0 || (step < state.clock && state.skipped.count(step) == 0)) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, ": table '", name(), "': push of step ",
                                                   step, ", but that step was already pushed (next is step ",
                                                   next(), "; ", ModeName(mode_), ")"));
  }
  if (step >= state.clock + kMaxEarlyPushes) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, ": table '", name(), "': push of step ",
                                                   step, ", but step ", next(), " is next and at most ",
                                                   kMaxEarlyPushes, " steps may wait (", ModeName(mode_),
                                                   "); steps count from 0, or from the loaded checkpoint's"));
  }
  return absl::OkStatus();
}

absl::Status ServerTable::CheckHeldBack(uint32_t worker) const {
  absl::MutexLock lock(&mutex_);
  if (mode_.kind() == v1::UpdateMode::BOUNDED || mode_.kind() == v1::UpdateMode::ASYNC)
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", worker, ": table '", name(), "': gradients held back from earlier steps, but the table is ",
      ModeName(mode_), ": push them before the mode changes"));
}

void ServerTable::Enqueue(TablePush push) {
  waiting_bytes_.fetch_add(push.memory_bytes, std::memory_order_relaxed);
  absl::MutexLock lock(&mutex_);
  if (mode_.kind() == v1::UpdateMode::GBA) return batch_.Add(std::move(push));
  Worker& worker = workers_[push.worker];
  const uint64_t step = push.step;
  worker.waiting.emplace(step, std::move(push));
}

std::vector<uint32_t> ServerTable::PickLocked() const {
  const auto first_step = [](const Worker& worker) { return worker.waiting.begin()->first; };
  if (mode_.kind() != v1::UpdateMode::SYNC) {
    const bool in_order = mode_.kind() == v1::UpdateMode::BOUNDED;
    for (uint32_t w = 0; w < workers_.size(); ++w) {
      const Worker& worker = workers_[w];
      if (worker.busy || worker.waiting.empty()) continue;
      if (!in_order || first_step(worker) <= worker.clock) return {w};
    }
    return {};
  }
  if (busy_ > 0) return {};
  uint64_t foremost = 0;
  for (const Worker& worker : workers_) foremost = std::max(foremost, worker.clock);
  std::vector<uint32_t> all;
  for (uint32_t w = 0; w < workers_.size(); ++w) {
    const Worker& worker = workers_[w];
    if (worker.waiting.empty()) continue;
    const uint64_t step = first_step(worker);
    if (step < worker.clock || (step == worker.clock && worker.clock < foremost)) return {w};
    if (step == worker.clock) all.push_back(w);
  }
  if (all.size() < workers_.size()) all.clear();
  return all;
}

void ServerTable::Advance(Worker& worker, uint64_t step) {
  if (step < worker.clock) {
    worker.skipped.erase(step);
    return;
  }
  const uint64_t gap = std::min(step - worker.clock, kMaxEarlyPushes);
  for (uint64_t s = step - gap; s < step; ++s) worker.skipped.insert(s);
  while (worker.skipped.size() > kMaxEarlyPushes) worker.skipped.erase(worker.skipped.begin());
  worker.clock = step + 1;
}

absl::StatusOr<uint64_t> ServerTable::ApplyMerged(TableStorage& storage,
                                                  absl::Span<const TablePush* const> pushes) const {
  const TablePush* only = nullptr;
  size_t parts = 0;
  size_t rows = 0;
  for (const TablePush* push : pushes) {
    if (push->ids.empty()) continue;
    only = push;
    ++parts;
    rows += push->ids.size();
  }
  for (const TablePush* push : pushes) {
    trace::End(kTraceQueuedPush, push->traced, static_cast<int64_t>(push->step), push->worker,
               static_cast<int64_t>(push->ids.size()));
  }
  const trace::Span traced(kTraceApply, static_cast<int64_t>(rows), static_cast<int64_t>(parts));
  // The lowest rank's factor, even if it brought no rows to this server: every server must use the same.
  ApplyOptions options{.learning_rate_factor = pushes.front()->learning_rate_factor, .helpers = helpers_};
  // Without rows, too: the table's clock must be the same on every server.
  if (parts == 0) return storage.Apply({}, nullptr, options);
  if (parts == 1) {
    options.row_factors = only->row_factors;
    return storage.Apply(only->ids, only->gradients, options);
  }
  const bool factors = std::any_of(pushes.begin(), pushes.end(),
                                   [](const TablePush* push) { return push->row_factors != nullptr; });
  // Rank order: the sum of an id's gradients has the same bits on any number of servers.
  const size_t row_bytes = sizeof(uint64_t) + (dim() + (factors ? 1 : 0)) * sizeof(float);
  const std::shared_ptr<char> memory = buffers_->Get(rows * row_bytes);
  auto* ids = reinterpret_cast<uint64_t*>(memory.get());
  auto* gradients = reinterpret_cast<float*>(ids + rows);
  float* const row_factors = factors ? gradients + rows * dim() : nullptr;
  size_t at = 0;
  for (const TablePush* push : pushes) {
    const size_t count = push->ids.size();
    if (count == 0) continue;
    std::memcpy(ids + at, push->ids.data(), count * sizeof(uint64_t));
    std::memcpy(gradients + at * dim(), push->gradients, count * dim() * sizeof(float));
    if (push->row_factors != nullptr) {
      std::copy_n(push->row_factors, count, row_factors + at);
    } else if (factors) {
      std::fill_n(row_factors + at, count, 1.0f);
    }
    at += count;
  }
  options.row_factors = row_factors;
  return storage.Apply(absl::MakeConstSpan(ids, rows), gradients, options);
}

void ServerTable::ApplyReadyLocked(std::vector<Waiter>* released) {
  if (mode_.kind() == v1::UpdateMode::GBA) return ApplyBatchesLocked();
  while (true) {
    const std::vector<uint32_t> picked = PickLocked();
    if (picked.empty()) return;
    // The entries stay where they are until they are in the rows, so that CheckPush sees their steps.
    std::vector<std::multimap<uint64_t, TablePush>::iterator> entries;
    std::vector<const TablePush*> pushes;
    for (uint32_t w : picked) {
      workers_[w].busy = true;
      entries.push_back(workers_[w].waiting.begin());
      pushes.push_back(&entries.back()->second);
    }
    ++busy_;
    const std::shared_ptr<TableStorage> storage = storage_;
    const auto begun = under_way_.insert(storage->clock());
    mutex_.Unlock();
    const absl::StatusOr<uint64_t> missing = ApplyMerged(*storage, pushes);
    const uint64_t before = version_.fetch_add(1, std::memory_order_acq_rel);
    for (size_t i = 0; i < pushes.size(); ++i) {
      counters_.AddAppliedPush(pushes[i]->ids.size(), i == 0 ? missing.value_or(0) : 0,
                               StalenessOf(before, pushes[i]->pulled_version));
    }
    mutex_.Lock();
    --busy_;
    under_way_.erase(begun);
    std::vector<TablePush> done;
    for (size_t i = 0; i < picked.size(); ++i) {
      Worker& worker = workers_[picked[i]];
      worker.busy = false;
      done.push_back(std::move(entries[i]->second));
      waiting_bytes_.fetch_sub(done.back().memory_bytes, std::memory_order_relaxed);
      if (!done.back().held_back) Advance(worker, done.back().step);
      worker.waiting.erase(entries[i]);
    }
    CollectReadyLocked(released);
    mutex_.Unlock();
    for (TablePush& push : done) {
      if (push.settled) push.settled(missing);
    }
    done.clear();
    mutex_.Lock();
  }
}

void ServerTable::CollectReadyLocked(std::vector<Waiter>* released) {
  for (size_t i = 0; i < parked_.size();) {
    if (ReadyLocked(parked_[i].step)) {
      released->push_back(std::move(parked_[i].waiter));
      parked_[i] = std::move(parked_.back());
      parked_.pop_back();
    } else {
      ++i;
    }
  }
}

void ServerTable::CollectBlockedLocked(std::vector<TablePush::Settled>* settled) {
  const auto collect = [settled](TablePush& push) {
    if (push.settled) settled->push_back(std::exchange(push.settled, nullptr));
  };
  batch_.ForEach(collect);
  if (mode_.kind() == v1::UpdateMode::SYNC && busy_ > 0) return;
  for (Worker& worker : workers_) {
    if (worker.busy) continue;
    for (auto& [step, push] : worker.waiting) collect(push);
  }
}

std::vector<ServerTable::Waiter> ServerTable::Drain() {
  std::vector<Waiter> released;
  std::vector<TablePush::Settled> settled;
  {
    absl::MutexLock lock(&mutex_);
    ApplyReadyLocked(&released);
    CollectBlockedLocked(&settled);
  }
  for (auto& done : settled) done(uint64_t{0});
  return released;
}

void ServerTable::SetUpdateMode(const v1::UpdateMode& mode, std::vector<Waiter>* released) {
  absl::MutexLock lock(&mutex_);
  while (batch_.pushes() > 0) ApplyBatchLocked(batch_.TakeFirst());
  mode_ = mode;
  if (mode.kind() != v1::UpdateMode::SYNC) {
    // One at a time and the lowest step first, so that what was kept for merging goes in rank order.
    while (true) {
      Worker* next = nullptr;
      for (Worker& worker : workers_) {
        if (worker.waiting.empty()) continue;
        const uint64_t step = worker.waiting.begin()->first;
        if (mode.kind() == v1::UpdateMode::BOUNDED && step > worker.clock) continue;
        if (next == nullptr || step < next->waiting.begin()->first) next = &worker;
      }
      if (next == nullptr) break;
      TablePush push = std::move(next->waiting.begin()->second);
      next->waiting.erase(next->waiting.begin());
      waiting_bytes_.fetch_sub(push.memory_bytes, std::memory_order_relaxed);
      const TablePush* const alone = &push;
      // Acknowledged long ago: an error shows in the table's next calls.
      const uint64_t missing = ApplyMerged(*storage_, {&alone, 1}).value_or(0);
      const uint64_t before = version_.fetch_add(1, std::memory_order_acq_rel);
      counters_.AddAppliedPush(push.ids.size(), missing, StalenessOf(before, push.pulled_version));
      if (!push.held_back) Advance(*next, push.step);
    }
  }
  batch_.Start(version());
  ApplyReadyLocked(released);
  CollectReadyLocked(released);
}

absl::Status ServerTable::Describe(v1::TableFileHeader* header) const {
  *header->mutable_config() = config();
  absl::MutexLock lock(&mutex_);
  for (uint32_t w = 0; w < workers_.size(); ++w) {
    if (!workers_[w].waiting.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "table '", name(), "': the push of step ", workers_[w].waiting.begin()->first, " from worker ", w,
          " is here but waits for others (", ModeName(mode_),
          "): save when every worker has pushed the same steps (a barrier before SaveCheckpoint)"));
    }
    header->add_worker_clock(workers_[w].clock);
  }
  if (batch_.pushes() > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("table '", name(), "': ", batch_.pushes(), " pushes are kept (", ModeName(mode_), ")"));
  }
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
  for (uint32_t w = 0; w < workers_.size(); ++w) {
    for (const auto& [step, push] : workers_[w].waiting) {
      waiting_bytes_.fetch_sub(push.memory_bytes, std::memory_order_relaxed);
    }
    workers_[w] = Worker{};
    workers_[w].clock = clocks[w];
  }
  batch_.ForEach([this](const TablePush& push) {
    waiting_bytes_.fetch_sub(push.memory_bytes, std::memory_order_relaxed);
  });
  batch_.Reset(version);
  CollectReadyLocked(released);
}

}  // namespace tandem::ps
