// SPDX-License-Identifier: Apache-2.0
#include "ps/server/table/hot_keys.h"

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace tandem::ps {

void HotKeys::Add(absl::Span<const uint64_t> ids) {
  if (ids.empty()) return;
  const uint64_t before = seen_.fetch_add(ids.size(), std::memory_order_relaxed);
  const uint64_t stride = before < kEager ? kEagerStride : kStride;
  size_t at = Mix64(before, ids.size()) % stride;
  if (at >= ids.size()) return;
  absl::MutexLock lock(&mutex_);
  for (; at < ids.size(); at += stride) CountLocked(ids[at], stride);
}

void HotKeys::CountLocked(uint64_t id, uint64_t weight) {
  if (const auto found = at_.find(id); found != at_.end()) {
    heap_[found->second].pulls += weight;
    SinkLocked(found->second);
  } else if (heap_.size() < kCounters) {
    heap_.push_back({id, weight});
    at_.emplace(id, heap_.size() - 1);
    RiseLocked(heap_.size() - 1);
  } else {
    // The new id may have been counted before, by the smallest counter at most: it inherits that count.
    at_.erase(heap_[0].id);
    heap_[0].id = id;
    heap_[0].pulls += weight;
    at_.emplace(id, 0);
    SinkLocked(0);
  }
}

void HotKeys::SinkLocked(size_t at) {
  while (true) {
    size_t least = at;
    for (const size_t child : {2 * at + 1, 2 * at + 2}) {
      if (child < heap_.size() && heap_[child].pulls < heap_[least].pulls) least = child;
    }
    if (least == at) return;
    SwapLocked(at, least);
    at = least;
  }
}

void HotKeys::RiseLocked(size_t at) {
  while (at > 0 && heap_[at].pulls < heap_[(at - 1) / 2].pulls) {
    SwapLocked(at, (at - 1) / 2);
    at = (at - 1) / 2;
  }
}

void HotKeys::SwapLocked(size_t a, size_t b) {
  std::swap(heap_[a], heap_[b]);
  at_[heap_[a].id] = a;
  at_[heap_[b].id] = b;
}

std::vector<HotKeys::Hot> HotKeys::Top(size_t count) const {
  std::vector<Hot> all;
  {
    absl::MutexLock lock(&mutex_);
    all = heap_;
  }
  count = std::min(count, all.size());
  std::partial_sort(all.begin(), all.begin() + count, all.end(), [](const Hot& a, const Hot& b) {
    return a.pulls != b.pulls ? a.pulls > b.pulls : a.id < b.id;
  });
  all.resize(count);
  return all;
}

}  // namespace tandem::ps
