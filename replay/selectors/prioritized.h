// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_SELECTORS_PRIORITIZED_H_
#define TANDEM_REPLAY_SELECTORS_PRIORITIZED_H_

#include <cstdint>

#include "replay/selectors/selector.h"
#include "replay/selectors/sum_tree.h"
#include "replay/selectors/uniform.h"

namespace tandem::replay {

// Selects an item with probability priority^exponent / sum, by a sum tree. Items of priority 0 are never
// selected, except while all have priority 0: then the selection is uniform.
class PrioritizedSelector : public Selector {
 public:
  explicit PrioritizedSelector(double exponent) : exponent_(exponent) {}

  void Insert(uint32_t slot, double priority) override;
  void Update(uint32_t slot, double priority) override;
  void Prefetch(uint32_t slot) const override { tree_.Prefetch(slot); }
  void Remove(uint32_t slot) override;
  void Clear() override;
  Selection Select(CounterRandom& random) const override;
  std::vector<uint32_t> Order() const override { return all_.Order(); }
  double mass() const override { return tree_.total(); }

 private:
  const double exponent_;
  SumTree tree_;
  UniformSelector all_;  // used while the sum is 0
};

// Returns priority^exponent, with 0^0 = 1.
double PriorityWeight(double priority, double exponent);

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_SELECTORS_PRIORITIZED_H_
