// SPDX-License-Identifier: Apache-2.0
#include "ps/server/table/global_batch.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

namespace tandem::ps {

void GlobalBatch::Reset(uint64_t version) {
  *this = GlobalBatch();
  passed_ = version;
  Reopen(version);
  first_ = open_;
}

void GlobalBatch::Start(uint64_t version) {
  passed_.reset();
  Reopen(version);
  first_ = open_;
}

void GlobalBatch::Reopen(uint64_t version) {
  open_ = version + 1;
  in_open_ = 0;
}

UpdatePosition GlobalBatch::Assign(uint64_t pulled_version, uint64_t size, uint64_t staleness) {
  UpdatePosition position{.update = open_, .first = first_};
  // Update u is made when the version is u - 1.
  const uint64_t version = open_ - 1;
  position.stale = version > pulled_version && version - pulled_version > staleness;
  if (++in_open_ >= size) {
    ++open_;
    in_open_ = 0;
  }
  return position;
}

void GlobalBatch::BeginWith(uint64_t first) {
  if (first == 0 || (passed_.has_value() && *passed_ + 1 >= first)) return;
  passed_ = first - 1;
  // Pushes that were assigned to updates before it join the next update.
  while (!placed_.empty() && placed_.begin()->first < first) {
    std::move(placed_.begin()->second.begin(), placed_.begin()->second.end(), std::back_inserter(unplaced_));
    placed_.erase(placed_.begin());
  }
}

void GlobalBatch::Add(TablePush push) {
  ++pushes_;
  BeginWith(push.position.first);
  std::vector<TablePush>& to =
      push.position.update > passed_.value_or(0) ? placed_[push.position.update] : unplaced_;
  to.push_back(std::move(push));
}

std::optional<std::vector<TablePush>> GlobalBatch::TakeNext(uint64_t size) {
  if (placed_.empty()) {
    if (unplaced_.size() < size) return std::nullopt;
    return TakeFirst();
  }
  const auto& [update, pushes] = *placed_.begin();
  const bool in_order = !passed_.has_value() || update == *passed_ + 1;
  if ((in_order && pushes.size() >= size) || pushes_ >= kMaxUpdates * size) return TakeFirst();
  return std::nullopt;
}

std::vector<TablePush> GlobalBatch::TakeFirst() {
  std::vector<TablePush> taken = std::exchange(unplaced_, {});
  if (!placed_.empty()) {
    passed_ = placed_.begin()->first;
    std::vector<TablePush>& placed = placed_.begin()->second;
    std::move(placed.begin(), placed.end(), std::back_inserter(taken));
    placed_.erase(placed_.begin());
  }
  pushes_ -= taken.size();
  std::stable_sort(taken.begin(), taken.end(), [](const TablePush& a, const TablePush& b) {
    return std::tie(a.worker, a.step) < std::tie(b.worker, b.step);
  });
  return taken;
}

void GlobalBatch::ForEach(const std::function<void(TablePush&)>& visit) {
  for (TablePush& push : unplaced_) visit(push);
  for (auto& [update, pushes] : placed_) {
    for (TablePush& push : pushes) visit(push);
  }
}

}  // namespace tandem::ps
