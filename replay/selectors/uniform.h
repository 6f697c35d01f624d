// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_SELECTORS_UNIFORM_H_
#define TANDEM_REPLAY_SELECTORS_UNIFORM_H_

#include <cstdint>
#include <vector>

#include "replay/selectors/selector.h"

namespace tandem::replay {

// Selects every item with the same probability.
class UniformSelector : public Selector {
 public:
  void Insert(uint32_t slot, double priority) override;
  void Update(uint32_t slot, double priority) override {}
  void Remove(uint32_t slot) override;
  void Clear() override;
  Selection Select(CounterRandom& random) const override;
  std::vector<uint32_t> Order() const override { return slots_; }
  double mass() const override { return static_cast<double>(slots_.size()); }

 private:
  std::vector<uint32_t> slots_;      // of the present items, in no order
  std::vector<uint32_t> positions_;  // by slot: its index in slots_
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_SELECTORS_UNIFORM_H_
