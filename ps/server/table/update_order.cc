// SPDX-License-Identifier: Apache-2.0
#include "ps/server/table/update_order.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

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

}  // namespace

UpdateOrder::UpdateOrder(const std::string* table, const v1::UpdateMode& mode, uint32_t num_workers,
                         uint32_t first_worker)
    : table_(*table), first_worker_(first_worker), mode_(mode), clocks_(num_workers), workers_(num_workers) {
  batch_.Reset(/*version=*/0);  // a new table is at version 0 on all servers
}

size_t UpdateOrder::waiting_pushes() const {
  size_t pushes = batch_.pushes();
  for (const Worker& worker : workers_) pushes += worker.waiting.size();
  return pushes;
}

bool UpdateOrder::PullMayRun(uint64_t step) const {
  switch (mode_.kind()) {
    case v1::UpdateMode::SYNC:
      return clocks_.Min() >= step;
    case v1::UpdateMode::BOUNDED:
      return step <= mode_.staleness() || clocks_.Min() >= step - mode_.staleness();
    default:
      return true;
  }
}

bool UpdateOrder::IsQueued(uint32_t worker, uint64_t step) const {
  const auto [begin, end] = workers_[worker].waiting.equal_range(step);
  return std::any_of(begin, end, [](const auto& entry) { return !entry.second.deferred_gradients; });
}

uint64_t UpdateOrder::NextStep(uint32_t worker) const {
  uint64_t step = clocks_[worker];
  while (IsQueued(worker, step)) ++step;
  return step;
}

uint64_t UpdateOrder::StepsNeeded(uint64_t step) const {
  const uint64_t slack = mode_.kind() == v1::UpdateMode::BOUNDED ? mode_.staleness() : 0;
  return step > slack ? step - slack : 0;
}

std::optional<uint32_t> UpdateOrder::FirstAwaited(uint64_t step, const std::set<uint32_t>& workers) const {
  if (workers.empty() || PullMayRun(step)) return std::nullopt;
  for (const uint32_t worker : workers) {
    if (worker < first_worker_ || worker - first_worker_ >= workers_.size()) continue;
    if (NextStep(worker - first_worker_) < StepsNeeded(step)) return worker;
  }
  return std::nullopt;
}

std::string UpdateOrder::WhyWaiting(uint64_t step, uint32_t worker) const {
  const uint64_t needed = StepsNeeded(step);
  constexpr size_t kNamed = 8;
  std::vector<std::string> missing;
  size_t unnamed = 0;
  for (uint32_t w = 0; w < workers_.size(); ++w) {
    const uint64_t at = NextStep(w);
    if (at >= needed) continue;
    if (missing.size() < kNamed) {
      missing.push_back(absl::StrCat("the push of step ", at, " from worker ", first_worker_ + w));
    } else {
      ++unnamed;
    }
  }
  std::string text =
      absl::StrCat("table '", table_, "': pull of step ", step, " by worker ", worker, " waits for ");
  if (missing.empty()) absl::StrAppend(&text, "updates that are being applied");
  for (size_t i = 0; i < missing.size(); ++i) absl::StrAppend(&text, i == 0 ? "" : ", ", missing[i]);
  if (unnamed > 0) absl::StrAppend(&text, " and of ", unnamed, " more workers");
  return absl::StrCat(text, " (", ModeName(mode_), ")");
}

absl::Status UpdateOrder::CheckPush(uint32_t worker, uint64_t step) const {
  if (mode_.kind() == v1::UpdateMode::ASYNC || gba()) return absl::OkStatus();
  if (IsQueued(worker, step) || clocks_.IsDone(worker, step)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "worker ", first_worker_ + worker, ": table '", table_, "': push of step ", step,
        ", but that step was already pushed (next is step ", NextStep(worker), "; ", ModeName(mode_), ")"));
  }
  if (step >= clocks_[worker] + kMaxEarlyPushes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "worker ", first_worker_ + worker, ": table '", table_, "': push of step ", step, ", but step ",
        NextStep(worker), " is next and at most ", kMaxEarlyPushes, " steps may wait (", ModeName(mode_),
        "); steps count from 0, or from the loaded checkpoint's"));
  }
  return absl::OkStatus();
}

absl::Status UpdateOrder::CheckDeferredGradients(uint32_t worker) const {
  if (mode_.kind() == v1::UpdateMode::BOUNDED || mode_.kind() == v1::UpdateMode::ASYNC) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", first_worker_ + worker, ": table '", table_,
                   "': gradients held back from earlier steps, but the table is ", ModeName(mode_),
                   ": push them before the mode changes"));
}

bool UpdateOrder::IsAhead(uint64_t step) const {
  if (gba()) return batch_.pushes() + 1 < GlobalBatchSize();
  return mode_.kind() != v1::UpdateMode::ASYNC && step > clocks_.Min();
}

uint64_t UpdateOrder::GlobalBatchSize() const {
  return std::max<uint64_t>(1, mode_.global_batch() > 0 ? mode_.global_batch() : workers_.size());
}

UpdatePosition UpdateOrder::Assign(const TablePush& push) {
  if (!gba()) return UpdatePosition();
  const UpdatePosition position = batch_.Assign(push.pulled_version, GlobalBatchSize(), mode_.staleness());
  std::map<uint64_t, UpdatePosition>& positions = workers_[push.worker].positions;
  positions[push.step] = position;
  if (positions.size() > kMaxEarlyPushes) positions.erase(positions.begin());
  return position;
}

UpdatePosition UpdateOrder::PositionOf(uint32_t worker, uint64_t step) const {
  const auto found = workers_[worker].positions.find(step);
  return found == workers_[worker].positions.end() ? UpdatePosition() : found->second;
}

void UpdateOrder::Add(TablePush push) {
  if (gba()) return batch_.Add(std::move(push));
  Worker& worker = workers_[push.worker];
  // Deferred gradients must not wait behind a step: they belong to steps that may still be on their way.
  const uint64_t key = push.deferred_gradients ? 0 : push.step;
  worker.waiting.emplace(key, std::move(push));
}

std::vector<uint32_t> UpdateOrder::Pick() const {
  const auto first_step = [](const Worker& worker) { return worker.waiting.begin()->first; };
  if (!sync()) {
    const bool in_order = mode_.kind() == v1::UpdateMode::BOUNDED;
    for (uint32_t w = 0; w < workers_.size(); ++w) {
      const Worker& worker = workers_[w];
      if (worker.busy || worker.waiting.empty()) continue;
      if (!in_order || first_step(worker) <= clocks_[w]) return {w};
    }
    return {};
  }
  if (updates_under_way_ > 0) return {};
  const uint64_t foremost = clocks_.Max();
  std::vector<uint32_t> all;
  for (uint32_t w = 0; w < workers_.size(); ++w) {
    const Worker& worker = workers_[w];
    if (worker.waiting.empty()) continue;
    const uint64_t step = first_step(worker);
    if (step < clocks_[w] || (step == clocks_[w] && clocks_[w] < foremost)) return {w};
    if (step == clocks_[w]) all.push_back(w);
  }
  if (all.size() < workers_.size()) all.clear();
  return all;
}

std::optional<UpdateOrder::Update> UpdateOrder::Begin() {
  Update update;
  update.workers = Pick();
  if (update.workers.empty()) return std::nullopt;
  for (uint32_t w : update.workers) {
    workers_[w].busy = true;
    update.entries.push_back(workers_[w].waiting.begin());
    update.pushes.push_back(&update.entries.back()->second);
  }
  ++updates_under_way_;
  return update;
}

std::vector<TablePush> UpdateOrder::Finish(const Update& update) {
  --updates_under_way_;
  std::vector<TablePush> done;
  for (size_t i = 0; i < update.workers.size(); ++i) {
    Worker& worker = workers_[update.workers[i]];
    worker.busy = false;
    done.push_back(std::move(update.entries[i]->second));
    worker.waiting.erase(update.entries[i]);
    AdvanceClock(done.back());
  }
  return done;
}

void UpdateOrder::AdvanceClock(const TablePush& push) {
  if (!push.deferred_gradients) clocks_.Advance(push.worker, push.step);
}

std::optional<std::vector<TablePush>> UpdateOrder::BeginBatch() {
  if (updates_under_way_ > 0) return std::nullopt;
  std::optional<std::vector<TablePush>> batch = batch_.TakeNext(GlobalBatchSize());
  if (batch.has_value()) ++updates_under_way_;
  return batch;
}

std::optional<std::vector<TablePush>> UpdateOrder::BeginPartialBatch() {
  if (batch_.pushes() == 0) return std::nullopt;
  ++updates_under_way_;
  return batch_.TakeFirst();
}

void UpdateOrder::FinishBatch(const std::vector<TablePush>& batch) {
  --updates_under_way_;
  for (const TablePush& push : batch) clocks_.Advance(push.worker, push.step);
}

void UpdateOrder::CollectBlocked(std::vector<TablePush::Settled>* settled) {
  const auto collect = [settled](TablePush& push) {
    if (push.settled) settled->push_back(std::exchange(push.settled, nullptr));
  };
  batch_.ForEach(collect);
  if (sync() && updates_under_way_ > 0) return;
  for (Worker& worker : workers_) {
    if (worker.busy) continue;
    for (auto& [step, push] : worker.waiting) collect(push);
  }
}

std::optional<TablePush> UpdateOrder::TakeLowestStep() {
  if (sync()) return std::nullopt;
  Worker* next = nullptr;
  for (uint32_t w = 0; w < workers_.size(); ++w) {
    Worker& worker = workers_[w];
    if (worker.waiting.empty()) continue;
    const uint64_t step = worker.waiting.begin()->first;
    if (mode_.kind() == v1::UpdateMode::BOUNDED && step > clocks_[w]) continue;
    if (next == nullptr || step < next->waiting.begin()->first) next = &worker;
  }
  if (next == nullptr) return std::nullopt;
  std::optional<TablePush> push = std::move(next->waiting.begin()->second);
  next->waiting.erase(next->waiting.begin());
  return push;
}

absl::StatusOr<std::vector<uint64_t>> UpdateOrder::Save() const {
  std::vector<uint64_t> clocks;
  for (uint32_t w = 0; w < workers_.size(); ++w) {
    if (!workers_[w].waiting.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "table '", table_, "': the push of step ", workers_[w].waiting.begin()->first, " from worker ",
          first_worker_ + w, " is here but waits for others (", ModeName(mode_),
          "): save when every worker has pushed the same steps (a barrier before SaveCheckpoint)"));
    }
    clocks.push_back(clocks_[w]);
  }
  if (batch_.pushes() > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("table '", table_, "': ", batch_.pushes(), " pushes are kept (", ModeName(mode_), ")"));
  }
  return clocks;
}

uint64_t UpdateOrder::Restore(uint64_t version, const std::vector<uint64_t>& clocks) {
  uint64_t dropped = 0;
  for (uint32_t w = 0; w < workers_.size(); ++w) {
    for (const auto& [step, push] : workers_[w].waiting) dropped += push.memory_bytes;
    workers_[w] = Worker{};
    clocks_.Reset(w, clocks[w]);
  }
  batch_.ForEach([&dropped](const TablePush& push) { dropped += push.memory_bytes; });
  batch_.Reset(version);
  return dropped;
}

}  // namespace tandem::ps
