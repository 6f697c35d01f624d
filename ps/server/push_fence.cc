// SPDX-License-Identifier: Apache-2.0
#include "ps/server/push_fence.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tandem/v1/durability.pb.h"

namespace tandem::ps {

absl::StatusOr<PushFence::Verdict> PushFence::Check(uint32_t worker, uint64_t epoch,
                                                    uint64_t sequence) const {
  if (sequence == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", worker, ": push sequence 0: sequences count from 1"));
  }
  const uint64_t newest = Newest(worker);
  if (epoch < newest) {  // also if a checkpoint was loaded since, which may not know the worker
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", worker, ": push of epoch ", epoch, ", but this server has heard its epoch ", newest,
        ": an older process of this worker is still running, which must stop; or this worker "
        "repeats a push from before it took the new epoch, which cannot be repeated any more"));
  }
  const auto found = fences_.find(worker);
  if (found == fences_.end()) return Verdict::kNew;
  const Fence& fence = found->second;
  if (epoch > fence.epoch) return Verdict::kNew;
  if (fence.closed) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", worker, ": push of epoch ", epoch,
        ", but the checkpoint that was loaded holds pushes up to epoch ", fence.epoch,
        " made to another set of servers; a resumed worker must use an epoch above ", fence.epoch));
  }
  if (fence.above.count(sequence) > 0) return Verdict::kDuplicate;
  if (sequence > fence.low) return Verdict::kNew;
  if (fence.high() - sequence >= kWindow) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", worker, ": push sequence ", sequence, " of epoch ", epoch, " is ", fence.high() - sequence,
        " below the newest one taken, ", fence.high(), ", and this server tells apart ", kWindow,
        ": either it comes from a client that has more pushes under way, or its worker was restarted and "
        "must use an epoch above ",
        epoch));
  }
  const bool anew = fence.restored && sequence == 1 && fence.high() > 1;
  if (anew) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", worker, ": push sequence ", sequence, " of epoch ", epoch, ", but sequence ", fence.high(),
        " of this epoch was already taken: a restarted or resumed worker must use an epoch above ", epoch));
  }
  return Verdict::kDuplicate;
}

void PushFence::Commit(uint32_t worker, uint64_t epoch, uint64_t sequence) {
  Fence& fence = fences_[worker];
  if (epoch > fence.epoch) fence = Fence{.epoch = epoch};
  fence.restored = false;
  fence.above.insert(sequence);
  if (const uint64_t high = fence.high(); high > kWindow) fence.low = std::max(fence.low, high - kWindow);
  while (!fence.above.empty() && *fence.above.begin() <= fence.low + 1) {
    fence.low = std::max(fence.low, *fence.above.begin());
    fence.above.erase(fence.above.begin());
  }
}

absl::StatusOr<uint64_t> PushFence::StartEpoch(uint32_t worker, uint64_t at_least, uint64_t token) {
  if (token != 0) {
    for (const Started& started : started_[worker]) {
      if (started.token == token) return started.epoch;
    }
  }
  const uint64_t newest = Newest(worker);
  if (newest == std::numeric_limits<uint64_t>::max()) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " has used the largest push epoch, ",
                                                      newest,
                                                      ", and cannot start another one: restart the servers"));
  }
  const uint64_t epoch = std::max(at_least, newest + 1);
  fences_[worker] = Fence{.epoch = epoch};
  RememberToken(worker, epoch, token);
  return epoch;
}

void PushFence::RememberToken(uint32_t worker, uint64_t epoch, uint64_t token) {
  if (token == 0) return;
  std::deque<Started>& started = started_[worker];
  for (const Started& one : started) {
    if (one.token == token) return;
  }
  started.push_back({token, epoch});
  if (started.size() > kKnownTokens) started.pop_front();
}

void PushFence::RepeatStart(uint32_t worker, uint64_t epoch, uint64_t token) {
  RememberToken(worker, epoch, token);
  if (epoch > Newest(worker)) fences_[worker] = Fence{.epoch = epoch};
}

uint64_t PushFence::Newest(uint32_t worker) const {
  const auto fence = fences_.find(worker);
  const auto newest = newest_.find(worker);
  return std::max(fence == fences_.end() ? 0 : fence->second.epoch,
                  newest == newest_.end() ? 0 : newest->second);
}

void PushFence::RememberEpochs() {
  for (const auto& [worker, fence] : fences_) {
    uint64_t& newest = newest_[worker];
    newest = std::max(newest, fence.epoch);
  }
}

std::vector<v1::WorkerFence> PushFence::Save() const {
  std::vector<v1::WorkerFence> saved;
  for (const auto& [worker, fence] : fences_) {
    v1::WorkerFence& to = saved.emplace_back();
    to.set_worker(worker);
    to.set_epoch(fence.epoch);
    to.set_sequence(fence.low);
    to.mutable_above()->Add(fence.above.begin(), fence.above.end());
  }
  return saved;
}

void PushFence::Restore(const std::vector<v1::WorkerFence>& fences) {
  RememberEpochs();
  fences_.clear();
  for (const v1::WorkerFence& from : fences) {
    Fence& fence = fences_[from.worker()];
    fence.epoch = from.epoch();
    fence.low = from.sequence();
    fence.above.insert(from.above().begin(), from.above().end());
    fence.restored = true;
  }
}

void PushFence::RestoreEpochsOnly(const std::vector<v1::WorkerFence>& fences) {
  RememberEpochs();
  fences_.clear();
  for (const v1::WorkerFence& from : fences) {
    Fence& fence = fences_[from.worker()];
    fence.epoch = std::max(fence.epoch, from.epoch());
    fence.closed = true;
  }
}

v1::PushFenceState PushFence::SaveState() const {
  v1::PushFenceState state;
  for (const v1::WorkerFence& saved : Save()) {
    const Fence& fence = fences_.at(saved.worker());
    v1::PushFenceState::Fence* to = state.add_fences();
    *to->mutable_taken() = saved;
    to->set_restored(fence.restored);
    to->set_closed(fence.closed);
  }
  for (const auto& [worker, epoch] : newest_) {
    v1::PushFenceState::Newest* to = state.add_newest();
    to->set_worker(worker);
    to->set_epoch(epoch);
  }
  for (const auto& [worker, started] : started_) {
    for (const Started& one : started) {
      v1::LogStartEpoch* to = state.add_started();
      to->set_worker(worker);
      to->set_epoch(one.epoch);
      to->set_token(one.token);
    }
  }
  return state;
}

void PushFence::RestoreState(const v1::PushFenceState& state) {
  fences_.clear();
  newest_.clear();
  started_.clear();
  for (const v1::PushFenceState::Fence& from : state.fences()) {
    Fence& fence = fences_[from.taken().worker()];
    fence.epoch = from.taken().epoch();
    fence.low = from.taken().sequence();
    fence.above.insert(from.taken().above().begin(), from.taken().above().end());
    fence.restored = from.restored();
    fence.closed = from.closed();
  }
  for (const v1::PushFenceState::Newest& from : state.newest()) newest_[from.worker()] = from.epoch();
  for (const v1::LogStartEpoch& from : state.started()) {
    RememberToken(from.worker(), from.epoch(), from.token());
  }
}

}  // namespace tandem::ps
