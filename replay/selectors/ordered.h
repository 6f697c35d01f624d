// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_SELECTORS_ORDERED_H_
#define TANDEM_REPLAY_SELECTORS_ORDERED_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "replay/selectors/selector.h"

namespace tandem::replay {

// Selects the oldest item (fifo) or the newest one (lifo): a doubly linked list through the slots.
class OrderedSelector : public Selector {
 public:
  explicit OrderedSelector(bool oldest) : oldest_(oldest) {}

  void Insert(uint32_t slot, double priority) override;
  void Update(uint32_t slot, double priority) override {}
  void Remove(uint32_t slot) override;
  void Clear() override;
  Selection Select(CounterRandom& random) const override { return {.slot = oldest_ ? first_ : last_}; }
  bool Upcoming(size_t n, std::vector<uint32_t>* slots) const override;
  double mass() const override { return static_cast<double>(size_); }

 private:
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  struct Links {
    uint32_t older = kNone, newer = kNone;
  };
  const bool oldest_;
  std::vector<Links> links_;  // by slot
  uint32_t first_ = kNone, last_ = kNone;
  uint64_t size_ = 0;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_SELECTORS_ORDERED_H_
