// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_SELECTORS_HEAP_H_
#define TANDEM_REPLAY_SELECTORS_HEAP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "replay/selectors/selector.h"

namespace tandem::replay {

// Selects the item of lowest or highest priority, the oldest of equals: a binary heap whose entries know
// their places.
class HeapSelector : public Selector {
 public:
  explicit HeapSelector(bool lowest) : sign_(lowest ? 1 : -1) {}

  void Insert(uint32_t slot, double priority) override;
  void Update(uint32_t slot, double priority) override;
  void Remove(uint32_t slot) override;
  void Clear() override;
  Selection Select(CounterRandom& random) const override { return {.slot = heap_[0].slot}; }
  bool Upcoming(size_t n, std::vector<uint32_t>* slots) const override;
  double mass() const override { return static_cast<double>(heap_.size()); }

 private:
  struct Entry {
    double order = 0;     // the priority, negated if the highest is wanted
    uint64_t serial = 0;  // counts insertions
    uint32_t slot = 0;
    bool Before(const Entry& other) const {
      return order != other.order ? order < other.order : serial < other.serial;
    }
  };
  // Moves the entry at `place` to where it belongs.
  void Settle(size_t place);
  void Put(size_t place, const Entry& entry) {
    heap_[place] = entry;
    places_[entry.slot] = place;
  }

  const double sign_;
  std::vector<Entry> heap_;
  std::vector<size_t> places_;  // by slot: its index in heap_
  uint64_t next_serial_ = 0;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_SELECTORS_HEAP_H_
