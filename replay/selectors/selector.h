// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_SELECTORS_SELECTOR_H_
#define TANDEM_REPLAY_SELECTORS_SELECTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/random.h"

namespace tandem::replay {

// A kind of selector. The numbers are sent between processes: new ones may be added.
enum class SelectorKind : uint8_t {
  kFifo = 0,     // the oldest item
  kLifo,         // the newest item
  kUniform,      // each item with the same probability
  kPrioritized,  // each item with probability priority^exponent / sum; uniform while the sum is 0
  kLowest,       // the item of lowest priority, the oldest of equals
  kHighest,      // the item of highest priority, the oldest of equals
};

// A selector and its parameter. A plain value.
struct SelectorOptions {
  SelectorKind kind = SelectorKind::kUniform;
  // kPrioritized: alpha of Schaul et al. (Prioritized experience replay, ICLR 2016). 0 is uniform.
  double exponent = 0.6;

  friend bool operator==(const SelectorOptions&, const SelectorOptions&) = default;
};

// Returns "fifo", "prioritized", ...; "unknown selector" for a number that is not a SelectorKind.
absl::string_view Name(SelectorKind kind);
// Returns the kind with this name. InvalidArgument, which lists the names, if there is none.
absl::StatusOr<SelectorKind> ParseSelector(absl::string_view name);
// InvalidArgument: an unknown kind, or an exponent that is not in [0, 16].
absl::Status CheckSelector(const SelectorOptions& options);
// InvalidArgument unless `priority` is finite, not negative and not too large for the selector: with
// kPrioritized, priority^exponent must be at most 2^990, so that no sum overflows.
absl::Status CheckPriority(const SelectorOptions& options, double priority);

// Chooses items of a table: which one is sampled next, or which one is removed. Items are known by their
// slots, small numbers that the table uses again after a removal. Not thread-safe.
//
// The same calls give the same selections: order, slots and random numbers decide, and nothing else.
class Selector {
 public:
  struct Selection {
    uint32_t slot = 0;
    double probability = 1;  // of this selection among the present items; 1 if it was not random
  };

  virtual ~Selector() = default;
  // Adds an item. `slot` must not be in use, `priority` must pass CheckPriority.
  virtual void Insert(uint32_t slot, double priority) = 0;
  // Changes the priority of the item in `slot`.
  virtual void Update(uint32_t slot, double priority) = 0;
  // Fetches what Update of this slot will change into the cache. `slot` must be in use.
  virtual void Prefetch(uint32_t slot) const {}
  virtual void Remove(uint32_t slot) = 0;
  virtual void Clear() = 0;
  // Selects an item. There must be one.
  virtual Selection Select(CounterRandom& random) const = 0;
  // Appends the slots of the next `n` selections, fewer if there are fewer items, each of which would remove
  // its item. Returns false, and appends nothing, if selections are random.
  virtual bool Upcoming(size_t n, std::vector<uint32_t>* slots) const { return false; }
  // Returns the slots in an order that selections depend on besides the order of insertion: inserting them in
  // this order into an empty selector gives one that selects the same. Empty: in the order of insertion.
  virtual std::vector<uint32_t> Order() const { return {}; }
  // Returns the sum that probabilities are relative to: of priority^exponent with kPrioritized, else the
  // number of items.
  virtual double mass() const = 0;
};

// Makes an empty selector. `options` must pass CheckSelector.
std::unique_ptr<Selector> MakeSelector(const SelectorOptions& options);

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_SELECTORS_SELECTOR_H_
