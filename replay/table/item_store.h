// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_TABLE_ITEM_STORE_H_
#define TANDEM_REPLAY_TABLE_ITEM_STORE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "replay/chunks/trajectory.h"
#include "replay/selectors/selector.h"
#include "replay/table/table_options.h"

namespace tandem::replay {

// One sampled item. Keeps the item's chunks alive.
struct SampledItem {
  uint64_t key = 0;
  double probability = 1;  // of this draw
  double priority = 0;
  uint32_t times_sampled = 0;  // this draw included
  std::shared_ptr<const Trajectory> trajectory;
};

// How many items left a table, by cause.
struct Removals {
  uint64_t by_max_items = 0;
  uint64_t by_max_bytes = 0;
  uint64_t consumed = 0;  // sampled max_times_sampled times
  uint64_t by_reset = 0;
  uint64_t stale = 0;   // too old for TableOptions::staleness
  uint64_t by_ttl = 0;  // too old for TableOptions::ttl
};

// The items of a table with their selectors and budgets, without limiter and lock. Not thread-safe.
//
// Removed trajectories are collected until TakeGarbage, so that the caller can free them without its lock.
class ItemStore {
 public:
  // An item as it is saved.
  struct Item {
    // Low half: the slot. High half: the low half of the item's serial number.
    uint64_t key = 0;
    double priority = 0;
    uint32_t times_sampled = 0;
    uint64_t serial = 0;  // counts insertions
    std::shared_ptr<const Trajectory> trajectory;
    uint64_t ticket = 0;  // with StalenessKind::kPace: what permitted the insertion; else 0
  };

  // State that later draws depend on besides the items and the number of draws.
  struct Order {
    uint64_t removal_draws = 0;
    std::vector<uint32_t> free;  // the free slots, in the order in which they will be used, last first
    std::vector<uint32_t> sampler, remover;  // Selector::Order
  };

  // `options` must pass CheckTableOptions. The serials of inserted items begin above `first_serial`.
  explicit ItemStore(const TableOptions& options, uint64_t first_serial = 0);

  // Inserts an item, after removing others until it fits. Without a priority it gets the largest one so far
  // given to an item of this table, at first 1. Returns its slot. Requires FitsAlone, and a priority that
  // passes CheckPriority. `now` is used only with a ttl.
  uint32_t Insert(std::optional<double> priority, std::shared_ptr<const Trajectory> trajectory,
                  uint64_t ticket = 0, absl::Time now = absl::InfinitePast());
  // Draws an item and counts that as a sample of it, which may remove it. Requires size() > 0.
  SampledItem Draw();
  // Draws `n` items one after the other and appends them to `out`. Requires that the items may be sampled `n`
  // times.
  void Draw(size_t n, std::vector<SampledItem>* out);
  // Returns how many of the next `n` draws have values of at most `max_bytes` bytes together. If draws are
  // random and remove items (max_times_sampled), the result may be lower: each item then counts as one of
  // largest_item().
  uint64_t DrawsWithin(uint64_t n, uint64_t max_bytes);
  // Returns how many of the items in `slots`, from the first, have values of at most `max_bytes` together.
  uint64_t ItemsWithin(absl::Span<const uint32_t> slots, uint64_t max_bytes) const;
  // Samples the item in `slot`, likewise.
  SampledItem DrawFrom(uint32_t slot, double probability = 1);
  // Changes priorities; keys without an item are skipped. Returns the number of items changed. Requires valid
  // priorities.
  uint64_t Update(absl::Span<const uint64_t> keys, absl::Span<const double> priorities);
  // Removes the item in `slot` because it is too old for TableOptions::staleness.
  void RemoveStale(uint32_t slot) { Remove(slot, &removals_.stale); }
  // Removes the items with a step of a version before `version`, for StalenessKind::kEvict; else no effect.
  void RemoveOlderVersions(int64_t version);
  // Removes the items that are older than the ttl.
  void RemoveExpired(absl::Time now);
  // Removes all items.
  void Clear();
  // Changes the budgets and removes what exceeds them.
  void SetBudgets(uint64_t max_items, uint64_t max_bytes);

  // ResourceExhausted if the item alone exceeds max_bytes.
  absl::Status FitsAlone(const Trajectory& trajectory) const;
  // InvalidArgument: a priority that sampler or remover refuses.
  absl::Status CheckPriority(double priority) const;

  uint64_t size() const { return size_; }
  uint64_t bytes() const { return bytes_; }
  double mass() const { return sampler_->mass(); }
  double max_priority() const { return max_priority_; }
  uint64_t draws() const { return draws_; }
  // Returns the bytes of the values of the largest item. Looks at all items if the largest one has left.
  uint64_t largest_item();
  uint64_t serial() const { return serial_; }
  const Removals& removals() const { return removals_; }
  // Returns the samples that the present items may still give; only meaningful with max_times_sampled.
  uint64_t unspent() const { return unspent_; }
  // Returns whether items have been removed since the last call.
  bool TakeRemoved() { return std::exchange(removed_, false); }
  // Returns the tickets of removed items, and forgets them.
  std::vector<uint64_t> TakeLeftTickets() { return std::exchange(left_tickets_, {}); }
  bool has_left_tickets() const { return !left_tickets_.empty(); }
  // Returns the removed trajectories, and forgets them.
  std::vector<std::shared_ptr<const Trajectory>> TakeGarbage() { return std::exchange(garbage_, {}); }

  // Returns the item in `slot`, or nullptr. Slots are below slots().
  const Item* Slot(uint32_t slot) const { return items_[slot].serial == 0 ? nullptr : &items_[slot]; }
  uint32_t slots() const { return static_cast<uint32_t>(items_.size()); }

  // Puts saved items back into their slots; the store must be empty. `items` must be ordered by serial, with
  // distinct slots. Later items get serials above `serial`. The ages of items begin anew at `now`. Parts of
  // `order` that do not fit the items are ignored: older checkpoints lack them.
  void Restore(std::vector<Item> items, uint64_t serial, uint64_t draws, double max_priority,
               const Order& order, absl::Time now = absl::InfinitePast());
  Order order() const;

 private:
  // Moves an item into its free slot, with which items_ has been extended, and not into the selectors.
  void Place(uint32_t slot, Item item, absl::Time now);
  void Remove(uint32_t slot, uint64_t* cause);
  // Returns the slot of the item that leaves next.
  uint32_t Victim();
  // Returns whether the item of this serial is still in `slot`.
  bool Holds(uint32_t slot, uint64_t serial) const {
    return slot < items_.size() && items_[slot].serial == serial;
  }
  // Returns the bytes of the chunks of `trajectory` that no item refers to yet.
  uint64_t NewBytes(const Trajectory& trajectory) const;

  TableOptions options_;
  const std::unique_ptr<Selector> sampler_, remover_;
  std::vector<Item> items_;                             // by slot; serial 0: free
  std::vector<uint32_t> free_;                          // the free slots, last in, first out
  absl::flat_hash_map<const Chunk*, uint32_t> chunks_;  // the number of items that refer to each chunk
  uint64_t size_ = 0, bytes_ = 0, serial_ = 0, draws_ = 0, unspent_ = 0, removal_draws_ = 0;
  // No item is larger. `largest_items_` have this size; if none has, it may be too large.
  uint64_t largest_item_ = 0, largest_items_ = 0;
  bool removed_ = false;
  double max_priority_ = 1;
  Removals removals_;
  std::vector<std::shared_ptr<const Trajectory>> garbage_;
  std::vector<uint64_t> left_tickets_;
  // Items in the order of their insertion (with a ttl), and with the smallest version first (with kEvict).
  // Those that have left are skipped.
  struct Entry {
    int64_t order = 0;  // the version; or when it was inserted, in nanoseconds
    uint64_t serial = 0;
    uint32_t slot = 0;
    bool operator>(const Entry& other) const { return order > other.order; }
  };
  std::deque<Entry> by_age_;
  std::vector<Entry> by_version_;  // a heap
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_TABLE_ITEM_STORE_H_
