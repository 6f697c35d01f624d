// SPDX-License-Identifier: Apache-2.0
#include "replay/table/item_store.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem::replay {
namespace {

uint32_t SlotOf(uint64_t key) { return static_cast<uint32_t>(key); }
uint64_t MakeKey(uint32_t slot, uint64_t serial) { return serial << 32 | slot; }

// Entries of items that have left are dropped when there are this many more than items.
constexpr size_t kSpareEntries = 1024;

// Returns whether both have the same numbers, in any order.
bool IsPermutation(std::vector<uint32_t> a, std::vector<uint32_t> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return a == b;
}

// The stream of random numbers of a random remover, apart from that of the samples.
constexpr uint64_t kRemovals = uint64_t{1} << 63;

}  // namespace

ItemStore::ItemStore(const TableOptions& options, uint64_t first_serial)
    : options_(options),
      sampler_(MakeSelector(options.sampler)),
      remover_(MakeSelector(options.remover)),
      serial_(first_serial) {}

absl::Status ItemStore::CheckPriority(double priority) const {
  TANDEM_RETURN_IF_ERROR(replay::CheckPriority(options_.sampler, priority));
  return replay::CheckPriority(options_.remover, priority);
}

absl::Status ItemStore::FitsAlone(const Trajectory& trajectory) const {
  if (options_.max_bytes == 0) return absl::OkStatus();
  uint64_t bytes = 0;
  for (const auto& chunk : trajectory.chunks) bytes += chunk->bytes();
  if (bytes <= options_.max_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("an item refers to chunks of ", bytes,
                                                   " bytes, and max_bytes is ", options_.max_bytes,
                                                   ": use shorter items or chunks, or raise max_bytes"));
}

uint64_t ItemStore::NewBytes(const Trajectory& trajectory) const {
  uint64_t bytes = 0;
  for (const auto& chunk : trajectory.chunks) {
    if (!chunks_.contains(chunk.get())) bytes += chunk->bytes();
  }
  return bytes;
}

uint32_t ItemStore::Victim() {
  CounterRandom random(options_.seed, kRemovals + removal_draws_++);
  return remover_->Select(random).slot;
}

uint32_t ItemStore::Insert(std::optional<double> priority, std::shared_ptr<const Trajectory> trajectory,
                           uint64_t ticket, absl::Time now) {
  while (size_ >= options_.max_items) Remove(Victim(), &removals_.by_max_items);
  if (options_.max_bytes > 0) {
    while (size_ > 0 && bytes_ + NewBytes(*trajectory) > options_.max_bytes) {
      Remove(Victim(), &removals_.by_max_bytes);
    }
  }
  uint32_t slot;
  if (free_.empty()) {
    slot = static_cast<uint32_t>(items_.size());
    items_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  max_priority_ = std::max(max_priority_, priority.value_or(0));
  ++serial_;
  const double given = priority.value_or(max_priority_);
  Place(slot,
        {.key = MakeKey(slot, serial_),
         .priority = given,
         .serial = serial_,
         .trajectory = std::move(trajectory),
         .ticket = ticket},
        now);
  sampler_->Insert(slot, given);
  remover_->Insert(slot, given);
  return slot;
}

void ItemStore::Place(uint32_t slot, Item placed, absl::Time now) {
  const Item& item = items_[slot] = std::move(placed);
  for (const auto& chunk : item.trajectory->chunks) {
    if (chunks_[chunk.get()]++ == 0) bytes_ += chunk->bytes();
  }
  unspent_ += options_.max_times_sampled - std::min(options_.max_times_sampled, item.times_sampled);
  ++size_;
  if (const uint64_t bytes = item.trajectory->bytes(); bytes >= largest_item_) {
    largest_items_ = bytes == largest_item_ ? largest_items_ + 1 : 1;
    largest_item_ = bytes;
  }
  if (options_.ttl > absl::ZeroDuration()) {
    by_age_.push_back({.order = absl::ToUnixNanos(now), .serial = item.serial, .slot = slot});
    if (by_age_.size() > 2 * size_ + kSpareEntries) {
      std::erase_if(by_age_, [this](const Entry& entry) { return !Holds(entry.slot, entry.serial); });
    }
  }
  if (options_.staleness.kind == StalenessKind::kEvict) {
    by_version_.push_back({.order = item.trajectory->min_version, .serial = item.serial, .slot = slot});
    std::push_heap(by_version_.begin(), by_version_.end(), std::greater<>());
    if (by_version_.size() > 2 * size_ + kSpareEntries) {
      std::erase_if(by_version_, [this](const Entry& entry) { return !Holds(entry.slot, entry.serial); });
      std::make_heap(by_version_.begin(), by_version_.end(), std::greater<>());
    }
  }
}

void ItemStore::RemoveOlderVersions(int64_t version) {
  while (!by_version_.empty() && by_version_.front().order < version) {
    const Entry oldest = by_version_.front();
    std::pop_heap(by_version_.begin(), by_version_.end(), std::greater<>());
    by_version_.pop_back();
    if (Holds(oldest.slot, oldest.serial)) Remove(oldest.slot, &removals_.stale);
  }
}

void ItemStore::RemoveExpired(absl::Time now) {
  if (by_age_.empty()) return;
  const int64_t last = absl::ToUnixNanos(now - options_.ttl);
  while (!by_age_.empty() && by_age_.front().order <= last) {
    const Entry oldest = by_age_.front();
    by_age_.pop_front();
    if (Holds(oldest.slot, oldest.serial)) Remove(oldest.slot, &removals_.by_ttl);
  }
}

void ItemStore::Remove(uint32_t slot, uint64_t* cause) {
  Item& item = items_[slot];
  sampler_->Remove(slot);
  remover_->Remove(slot);
  for (const auto& chunk : item.trajectory->chunks) {
    const auto found = chunks_.find(chunk.get());
    if (--found->second > 0) continue;
    bytes_ -= chunk->bytes();
    chunks_.erase(found);
  }
  unspent_ -= options_.max_times_sampled - std::min(options_.max_times_sampled, item.times_sampled);
  if (item.trajectory->bytes() == largest_item_) --largest_items_;
  removed_ = true;
  if (item.ticket != 0) left_tickets_.push_back(item.ticket);
  garbage_.push_back(std::move(item.trajectory));
  item = Item();
  free_.push_back(slot);
  if (--size_ == 0) largest_item_ = largest_items_ = 0;
  ++*cause;
}

SampledItem ItemStore::Draw() {
  CounterRandom random(options_.seed, draws_++);
  const Selector::Selection selection = sampler_->Select(random);
  return DrawFrom(selection.slot, selection.probability);
}

void ItemStore::Draw(size_t n, std::vector<SampledItem>* out) {
  if (options_.max_times_sampled > 0) {
    for (size_t i = 0; i < n; ++i) out->push_back(Draw());
    return;
  }
  // No draw changes the next one, so that the cache misses of all of them overlap.
  absl::InlinedVector<Selector::Selection, 256> chosen(n);
  for (Selector::Selection& selection : chosen) {
    CounterRandom random(options_.seed, draws_++);
    selection = sampler_->Select(random);
    __builtin_prefetch(&items_[selection.slot], 1);
  }
  for (const Selector::Selection& selection : chosen) {
    const Trajectory* const trajectory = items_[selection.slot].trajectory.get();
    __builtin_prefetch(trajectory, 1);
    __builtin_prefetch(reinterpret_cast<const char*>(trajectory) + 64);
  }
  for (const Selector::Selection& selection : chosen) {
    out->push_back(DrawFrom(selection.slot, selection.probability));
  }
}

uint64_t ItemStore::largest_item() {
  if (largest_items_ > 0 || size_ == 0) return largest_item_;
  largest_item_ = 0;
  for (const Item& item : items_) {
    if (item.serial == 0 || item.trajectory->bytes() < largest_item_) continue;
    largest_items_ = item.trajectory->bytes() == largest_item_ ? largest_items_ + 1 : 1;
    largest_item_ = item.trajectory->bytes();
  }
  return largest_item_;
}

uint64_t ItemStore::ItemsWithin(absl::Span<const uint32_t> slots, uint64_t max_bytes) const {
  uint64_t bytes = 0, n = 0;
  for (; n < slots.size(); ++n) {
    bytes += items_[slots[n]].trajectory->bytes();
    if (bytes > max_bytes) break;
  }
  return n;
}

uint64_t ItemStore::DrawsWithin(uint64_t n, uint64_t max_bytes) {
  if (largest_item_ == 0 || max_bytes / largest_item_ >= n) return n;
  if (options_.max_times_sampled > 0) {
    std::vector<uint32_t> items, draws;
    if (!sampler_->Upcoming(n, &items)) return std::min(n, max_bytes / std::max<uint64_t>(largest_item(), 1));
    for (const uint32_t slot : items) {
      // Each is drawn until it leaves.
      const uint64_t unspent = options_.max_times_sampled - items_[slot].times_sampled;
      draws.insert(draws.end(), std::min<uint64_t>(unspent, n - draws.size()), slot);
    }
    return ItemsWithin(draws, max_bytes);
  }
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < n; ++i) {
    CounterRandom random(options_.seed, draws_ + i);
    bytes += items_[sampler_->Select(random).slot].trajectory->bytes();
    if (bytes > max_bytes) return i;
  }
  return n;
}

SampledItem ItemStore::DrawFrom(uint32_t slot, double probability) {
  Item& item = items_[slot];
  ++item.times_sampled;
  SampledItem sampled = {.key = item.key,
                         .probability = probability,
                         .priority = item.priority,
                         .times_sampled = item.times_sampled,
                         .trajectory = item.trajectory};
  if (options_.max_times_sampled > 0) {
    --unspent_;
    if (item.times_sampled >= options_.max_times_sampled) Remove(slot, &removals_.consumed);
  }
  return sampled;
}

uint64_t ItemStore::Update(absl::Span<const uint64_t> keys, absl::Span<const double> priorities) {
  constexpr size_t kAhead = 16;
  uint64_t changed = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size() && SlotOf(keys[i + kAhead]) < items_.size()) {
      __builtin_prefetch(&items_[SlotOf(keys[i + kAhead])], 1);
      sampler_->Prefetch(SlotOf(keys[i + kAhead]));
    }
    const uint32_t slot = SlotOf(keys[i]);
    if (slot >= items_.size() || items_[slot].serial == 0 || items_[slot].key != keys[i]) continue;
    items_[slot].priority = priorities[i];
    max_priority_ = std::max(max_priority_, priorities[i]);
    sampler_->Update(slot, priorities[i]);
    remover_->Update(slot, priorities[i]);
    ++changed;
  }
  return changed;
}

void ItemStore::Clear() {
  for (Item& item : items_) {
    if (item.serial == 0) continue;
    if (item.ticket != 0) left_tickets_.push_back(item.ticket);
    garbage_.push_back(std::move(item.trajectory));
  }
  by_age_.clear();
  by_version_.clear();
  removals_.by_reset += size_;
  items_.clear();
  free_.clear();
  chunks_.clear();
  sampler_->Clear();
  remover_->Clear();
  size_ = bytes_ = unspent_ = largest_item_ = largest_items_ = 0;
  removed_ = false;
}

void ItemStore::SetBudgets(uint64_t max_items, uint64_t max_bytes) {
  options_.max_items = max_items;
  options_.max_bytes = max_bytes;
  while (size_ > max_items) Remove(Victim(), &removals_.by_max_items);
  while (max_bytes > 0 && bytes_ > max_bytes) Remove(Victim(), &removals_.by_max_bytes);
}

ItemStore::Order ItemStore::order() const {
  return {.removal_draws = removal_draws_,
          .free = free_,
          .sampler = sampler_->Order(),
          .remover = remover_->Order()};
}

void ItemStore::Restore(std::vector<Item> items, uint64_t serial, uint64_t draws, double max_priority,
                        const Order& order, absl::Time now) {
  std::vector<uint32_t> by_serial;
  uint32_t slots = 0;
  for (const Item& item : items) {
    by_serial.push_back(SlotOf(item.key));
    slots = std::max(slots, SlotOf(item.key) + 1);
  }
  for (const uint32_t slot : order.free) slots = std::max(slots, slot + 1);
  items_.resize(slots);
  for (Item& item : items) {
    const uint32_t slot = SlotOf(item.key);
    Place(slot, std::move(item), now);
  }
  for (uint32_t slot = slots; slot-- > 0;) {
    if (items_[slot].serial == 0) free_.push_back(slot);
  }
  if (IsPermutation(order.free, free_)) free_ = order.free;
  const auto fill = [&](Selector* selector, const std::vector<uint32_t>& saved) {
    const bool fits = IsPermutation(saved, by_serial);
    for (const uint32_t slot : fits ? saved : by_serial) selector->Insert(slot, items_[slot].priority);
  };
  fill(sampler_.get(), order.sampler);
  fill(remover_.get(), order.remover);
  serial_ = serial;
  draws_ = draws;
  removal_draws_ = order.removal_draws;
  max_priority_ = max_priority;
}

}  // namespace tandem::replay
