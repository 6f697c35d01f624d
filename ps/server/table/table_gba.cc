// A table's updates while it is GBA.

#include <algorithm>
#include <utility>

#include "ps/server/table/server_table.h"

namespace tandem::ps {

uint64_t ServerTable::GlobalBatchSizeLocked() const {
  return std::max<uint64_t>(1, mode_.global_batch() > 0 ? mode_.global_batch() : num_workers());
}

PushPlace ServerTable::Assign(TablePush* push) {
  absl::MutexLock lock(&mutex_);
  if (!places_) return push->place;
  push->place = PushPlace();
  if (mode_.kind() != v1::UpdateMode::GBA) return push->place;
  push->place = batch_.Assign(push->pulled_version, GlobalBatchSizeLocked(), mode_.staleness());
  std::map<uint64_t, PushPlace>& places = workers_[push->worker].places;
  places[push->step] = push->place;
  if (places.size() > kMaxEarlyPushes) places.erase(places.begin());
  return push->place;
}

PushPlace ServerTable::PlaceOf(uint32_t worker, uint64_t step) const {
  absl::MutexLock lock(&mutex_);
  const auto found = workers_[worker].places.find(step);
  return found == workers_[worker].places.end() ? PushPlace() : found->second;
}

void ServerTable::ApplyBatchesLocked() {
  // One thread at a time: updates are made in the order of their numbers.
  while (busy_ == 0) {
    std::optional<std::vector<TablePush>> batch = batch_.TakeNext(GlobalBatchSizeLocked());
    if (!batch.has_value()) return;
    ApplyBatchLocked(*std::move(batch));
  }
}

void ServerTable::ApplyBatchLocked(std::vector<TablePush> batch) {
  ++busy_;
  const std::shared_ptr<TableStorage> storage = storage_;
  const uint64_t allowed = mode_.staleness();
  mutex_.Unlock();
  const uint64_t before = version();
  std::vector<const TablePush*> fresh;
  std::vector<bool> stale;
  for (const TablePush& push : batch) {
    const uint64_t staleness = before > push.pulled_version ? before - push.pulled_version : 0;
    stale.push_back(push.place.update != 0 ? push.place.stale : staleness > allowed);
    if (stale.back()) {
      counters_.AddStalePush(staleness);
    } else {
      fresh.push_back(&push);
    }
  }
  // An update of which nothing is left counts, too: versions must be those of the other servers.
  const absl::StatusOr<uint64_t> missing =
      fresh.empty() ? storage->Apply({}, nullptr, {}) : ApplyMerged(*storage, fresh);
  version_.fetch_add(1, std::memory_order_acq_rel);
  for (size_t i = 0; i < fresh.size(); ++i) {
    counters_.AddAppliedPush(fresh[i]->ids.size(), i == 0 ? missing.value_or(0) : 0,
                             before > fresh[i]->pulled_version ? before - fresh[i]->pulled_version : 0);
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].settled) batch[i].settled(stale[i] && missing.ok() ? uint64_t{0} : missing);
  }
  mutex_.Lock();
  --busy_;
  for (const TablePush& push : batch) {
    waiting_bytes_.fetch_sub(push.memory_bytes, std::memory_order_relaxed);
    Advance(workers_[push.worker], push.step);
  }
  mutex_.Unlock();
  batch.clear();
  mutex_.Lock();
}

void ServerTable::ApplyDeferred() {
  absl::MutexLock lock(&mutex_);
  while (batch_.pushes() > 0) ApplyBatchLocked(batch_.TakeFirst());
  if (mode_.kind() == v1::UpdateMode::GBA) batch_.Reopen(version());
}

}  // namespace tandem::ps
