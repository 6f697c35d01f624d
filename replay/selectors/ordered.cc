// SPDX-License-Identifier: Apache-2.0
#include "replay/selectors/ordered.h"

namespace tandem::replay {

void OrderedSelector::Insert(uint32_t slot, double priority) {
  if (slot >= links_.size()) links_.resize(size_t{slot} + 1);
  links_[slot] = {.older = last_, .newer = kNone};
  (last_ == kNone ? first_ : links_[last_].newer) = slot;
  last_ = slot;
  ++size_;
}

void OrderedSelector::Remove(uint32_t slot) {
  const Links links = links_[slot];
  (links.older == kNone ? first_ : links_[links.older].newer) = links.newer;
  (links.newer == kNone ? last_ : links_[links.newer].older) = links.older;
  --size_;
}

bool OrderedSelector::Upcoming(size_t n, std::vector<uint32_t>* slots) const {
  uint32_t slot = oldest_ ? first_ : last_;
  for (; n > 0 && slot != kNone; --n) {
    slots->push_back(slot);
    slot = oldest_ ? links_[slot].newer : links_[slot].older;
  }
  return true;
}

void OrderedSelector::Clear() {
  links_.clear();
  first_ = last_ = kNone;
  size_ = 0;
}

}  // namespace tandem::replay
