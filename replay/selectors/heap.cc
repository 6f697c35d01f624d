// SPDX-License-Identifier: Apache-2.0
#include "replay/selectors/heap.h"

#include <algorithm>
#include <queue>

namespace tandem::replay {

void HeapSelector::Insert(uint32_t slot, double priority) {
  if (slot >= places_.size()) places_.resize(size_t{slot} + 1);
  heap_.push_back({.order = sign_ * priority, .serial = next_serial_++, .slot = slot});
  Settle(heap_.size() - 1);
}

void HeapSelector::Update(uint32_t slot, double priority) {
  heap_[places_[slot]].order = sign_ * priority;
  Settle(places_[slot]);
}

void HeapSelector::Remove(uint32_t slot) {
  const size_t place = places_[slot];
  const Entry last = heap_.back();
  heap_.pop_back();
  if (place == heap_.size()) return;
  heap_[place] = last;
  Settle(place);
}

bool HeapSelector::Upcoming(size_t n, std::vector<uint32_t>* slots) const {
  const auto later = [this](size_t a, size_t b) { return heap_[b].Before(heap_[a]); };
  std::priority_queue<size_t, std::vector<size_t>, decltype(later)> places(later);
  if (!heap_.empty()) places.push(0);
  for (; n > 0 && !places.empty(); --n) {
    const size_t place = places.top();
    places.pop();
    slots->push_back(heap_[place].slot);
    for (size_t child = 2 * place + 1; child < std::min(2 * place + 3, heap_.size()); ++child) {
      places.push(child);
    }
  }
  return true;
}

void HeapSelector::Clear() {
  heap_.clear();
  places_.clear();
}

void HeapSelector::Settle(size_t place) {
  const Entry entry = heap_[place];
  while (place > 0 && entry.Before(heap_[(place - 1) / 2])) {
    Put(place, heap_[(place - 1) / 2]);
    place = (place - 1) / 2;
  }
  for (size_t child = 2 * place + 1; child < heap_.size(); child = 2 * place + 1) {
    if (child + 1 < heap_.size() && heap_[child + 1].Before(heap_[child])) ++child;
    if (!heap_[child].Before(entry)) break;
    Put(place, heap_[child]);
    place = child;
  }
  Put(place, entry);
}

}  // namespace tandem::replay
