// SPDX-License-Identifier: Apache-2.0
#include "replay/selectors/prioritized.h"

#include <cmath>

namespace tandem::replay {

double PriorityWeight(double priority, double exponent) {
  return exponent == 1.0 ? priority : std::pow(priority, exponent);
}

void PrioritizedSelector::Insert(uint32_t slot, double priority) {
  tree_.Set(slot, PriorityWeight(priority, exponent_));
  all_.Insert(slot, priority);
}

void PrioritizedSelector::Update(uint32_t slot, double priority) {
  tree_.Set(slot, PriorityWeight(priority, exponent_));
}

void PrioritizedSelector::Remove(uint32_t slot) {
  tree_.Set(slot, 0);
  all_.Remove(slot);
}

void PrioritizedSelector::Clear() {
  tree_.Clear();
  all_.Clear();
}

Selector::Selection PrioritizedSelector::Select(CounterRandom& random) const {
  const double total = tree_.total();
  if (total <= 0) return all_.Select(random);
  const uint32_t slot = tree_.Find(random.UniformDouble() * total);
  return {.slot = slot, .probability = tree_.Get(slot) / total};
}

}  // namespace tandem::replay
