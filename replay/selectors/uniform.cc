// SPDX-License-Identifier: Apache-2.0
#include "replay/selectors/uniform.h"

namespace tandem::replay {

void UniformSelector::Insert(uint32_t slot, double priority) {
  if (slot >= positions_.size()) positions_.resize(size_t{slot} + 1);
  positions_[slot] = static_cast<uint32_t>(slots_.size());
  slots_.push_back(slot);
}

void UniformSelector::Remove(uint32_t slot) {
  const uint32_t position = positions_[slot];
  slots_[position] = slots_.back();
  positions_[slots_[position]] = position;
  slots_.pop_back();
}

void UniformSelector::Clear() {
  slots_.clear();
  positions_.clear();
}

Selector::Selection UniformSelector::Select(CounterRandom& random) const {
  return {.slot = slots_[random.Below(slots_.size())],
          .probability = 1.0 / static_cast<double>(slots_.size())};
}

}  // namespace tandem::replay
