// SPDX-License-Identifier: Apache-2.0
#include "ps/server/table/row_staleness_meter.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/numeric/bits.h"
#include "base/random.h"
#include "base/status.h"

namespace tandem::ps {
namespace {

constexpr size_t kNoPlace = ~size_t{0};
constexpr size_t kBlock = 64;           // ids whose slots are prefetched together
constexpr uint64_t kMaskUpdates = 63;   // earlier updates that a mask remembers
constexpr uint64_t kEnoughDelays = 16;  // pushes that make a mean delay

}  // namespace

RowStalenessMeter::~RowStalenessMeter() {
  if (slots_ != nullptr) tables_->fetch_sub(1);
}

uint64_t RowStalenessMeter::CountUpdate(absl::Span<const TablePush* const> pushes,
                                        std::atomic<uint64_t>* version, std::vector<Segments>* segments) {
  absl::MutexLock lock(&mutex_);
  const uint64_t before = version->fetch_add(1, std::memory_order_acq_rel);
  const uint64_t update = before + 1;
  if (!InPeriodLocked(update)) return before;
  const int64_t start_ns = clock_();
  ++updates_;
  if (segments != nullptr) segments->resize(pushes.size());
  for (size_t i = 0; i < pushes.size(); ++i) {
    MeasureLocked(update, *pushes[i], segments == nullptr ? nullptr : &(*segments)[i]);
  }
  if (updates_ == kTrial && HasTooFewSlotsLocked()) {
    restart_ = true;
    next_length_ = end_ - begin_;
  }
  spent_ns_ += clock_() - start_ns;
  return before;
}

bool RowStalenessMeter::InPeriodLocked(uint64_t update) {
  if (!restart_) {
    if (update < end_) return true;
    // Reading the clock costs as much as the rest of this function, so it is read now and then.
    if (update % 16 != 0 || clock_() - begin_ns_ < kPause * tables_->load() * spent_ns_) return false;
  }
  BeginPeriodLocked(update);
  return true;
}

void RowStalenessMeter::AllocateSlotsLocked() {
  constexpr size_t kAlignment = 64;
  memory_.reset(static_cast<char*>(std::calloc(kSlots * sizeof(Slot) + kAlignment, 1)));
  TANDEM_CHECK(memory_ != nullptr);
  const auto address = reinterpret_cast<uintptr_t>(memory_.get());
  tables_->fetch_add(1);
  slots_ = reinterpret_cast<Slot*>(memory_.get() + (kAlignment - address % kAlignment) % kAlignment);
}

void RowStalenessMeter::BeginPeriodLocked(uint64_t update) {
  const int64_t start_ns = clock_();
  if (updates_ >= kEnoughUpdates) KeepFoundLocked();
  if (slots_ == nullptr) AllocateSlotsLocked();
  if (updates_ >= kTrial && HasTooFewSlotsLocked()) {
    sample_bits_ = std::min(sample_bits_ + 1, kMaxSampleBits);
  } else if (updates_ >= kEnoughUpdates && sample_bits_ > 0 && slots_used_ * 16 < kSlots) {
    --sample_bits_;
  }
  if (delays_ >= kEnoughDelays) {
    earlier_mean_delay_ = MeanDelayLocked();
    kept_updates_ =
        std::clamp(static_cast<uint64_t>(1.5 * earlier_mean_delay_), kShortestMemory, kMaskUpdates);
  }
  ++period_;
  begin_ = update;
  end_ = update + std::exchange(next_length_, kPeriod);
  restart_ = false;
  begin_ns_ = start_ns;
  spent_ns_ = clock_() - start_ns;
  updates_ = delays_ = delay_sum_ = entries_ = untaken_ = slots_used_ = 0;
}

void RowStalenessMeter::KeepFoundLocked() {
  absl::erase_if(found_, [this](const std::pair<const uint64_t, double>& row)
                             ABSL_NO_THREAD_SAFETY_ANALYSIS { return SampledLocked(Mix64(row.first)); });
  const double updates = static_cast<double>(updates_);
  const double delay = MeanDelayLocked();
  for (size_t s = 0; s < kSlots && found_.size() < kMaxFound; ++s) {
    const Slot& slot = slots_[s];
    if (slot.period != period_ || slot.updates < 2) continue;
    const double rate = static_cast<double>(slot.updates) / updates;
    if (rate * delay >= 0.25) found_[slot.id] = rate;
  }
}

double RowStalenessMeter::MeanDelayLocked() const {
  if (delays_ < kEnoughDelays) return earlier_mean_delay_;
  return static_cast<double>(delay_sum_) / static_cast<double>(delays_);
}

bool RowStalenessMeter::SampledLocked(uint64_t hash) const {
  return ((hash ^ period_) & ((uint64_t{1} << sample_bits_) - 1)) == 0;
}

size_t RowStalenessMeter::PlaceLocked(uint64_t hash) const {
  // Ids that crowd one place in this period are elsewhere in the next.
  const uint64_t mixed = (hash * (2 * uint64_t{period_} + 0x9e3779b97f4a7c15ull)) >> 32;
  return static_cast<size_t>(mixed * (kSlots / kWays) >> 32) * kWays;
}

RowStalenessMeter::Slot* RowStalenessMeter::FindLocked(uint64_t id, size_t place, uint32_t now) {
  Slot* free = nullptr;
  uint64_t free_age = kept_updates_;
  for (size_t way = 0; way < kWays; ++way) {
    Slot& slot = slots_[place + way];
    const bool current = slot.period == period_;
    if (current && slot.id == id) return &slot;
    const uint64_t age = current ? now - slot.last : ~uint64_t{0};
    if (age > free_age) {
      free = &slot;
      free_age = age;
    }
  }
  if (free == nullptr) return nullptr;
  if (free->period != period_) ++slots_used_;
  *free = {.id = id, .mask = 0, .last = now, .period = period_, .updates = 0, .unused = 0};
  return free;
}

void RowStalenessMeter::MeasureLocked(uint64_t update, const TablePush& push, Segments* segments) {
  const auto now = static_cast<uint32_t>(update - begin_);
  const uint64_t before = update - 1;
  const uint64_t delay = before > push.pulled_version ? before - push.pulled_version : 0;
  const bool known = push.pulled_version > 0 || delay <= kLatestFirstPush;
  if (known) {
    ++delays_;
    delay_sum_ += delay;
    // Nothing is known of delays before the first period.
    if (earlier_mean_delay_ == 0) kept_updates_ = std::max(kept_updates_, std::min(delay, kMaskUpdates));
  }
  const uint64_t remembered = std::min(delay, kMaskUpdates);
  const bool counts = known && remembered <= now;
  const uint64_t window = ((uint64_t{1} << remembered) - 1) << 1;  // bit 0 stands for this update
  if (counts && segments != nullptr) segments->resize(push.segment_ends.size());
  size_t segment = 0;
  size_t places[kBlock];
  for (size_t begin = 0; begin < push.ids.size(); begin += kBlock) {
    const size_t end = std::min(begin + kBlock, static_cast<size_t>(push.ids.size()));
    for (size_t i = begin; i < end; ++i) {
      const uint64_t hash = Mix64(push.ids[i]);
      size_t& place = places[i - begin];
      place = SampledLocked(hash) ? PlaceLocked(hash) : kNoPlace;
      if (place == kNoPlace) continue;
      for (size_t way = 0; way < kWays; way += 2) __builtin_prefetch(slots_ + place + way, 1);
    }
    for (size_t i = begin; i < end; ++i) {
      const size_t place = places[i - begin];
      if (place == kNoPlace) continue;
      ++entries_;
      Slot* const slot = FindLocked(push.ids[i], place, now);
      if (slot == nullptr) {
        ++untaken_;
        continue;
      }
      const uint32_t age = now - slot->last;
      const uint64_t mask = age < 64 ? slot->mask << age : 0;
      if (counts) {
        uint64_t staleness = static_cast<uint64_t>(absl::popcount(mask & window));
        if (delay > kMaskUpdates) staleness = (staleness * delay + kMaskUpdates / 2) / kMaskUpdates;
        counts_.Add(staleness);
        if (segments != nullptr && !segments->empty()) {
          while (i >= push.segment_ends[segment]) ++segment;
          (*segments)[segment].Add(staleness);
        }
      }
      if ((mask & 1) == 0) ++slot->updates;
      slot->mask = mask | 1;
      slot->last = now;
    }
  }
}

void RowStalenessMeter::Restart() {
  absl::MutexLock lock(&mutex_);
  if (updates_ >= kEnoughUpdates) restart_ = true;
}

void RowStalenessMeter::Forget() {
  absl::MutexLock lock(&mutex_);
  found_.clear();
  next_length_ = kFirstPeriod;
  restart_ = true;
  end_ = 0;
  updates_ = delays_ = delay_sum_ = 0;
  earlier_mean_delay_ = 0;
}

RowStalenessCounts RowStalenessMeter::Counts() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

RowStalenessMeter::FrequentRows RowStalenessMeter::Frequent(double min_row_staleness, size_t limit) const {
  FrequentRows frequent;
  absl::MutexLock lock(&mutex_);
  const double delay = MeanDelayLocked();
  frequent.mean_staleness = delay;
  frequent.updates = updates_;
  const auto add = [&](uint64_t id, double rate) {
    if (rate * delay >= min_row_staleness) frequent.rows.push_back({id, rate * delay, rate});
  };
  const bool enough = updates_ >= kEnoughUpdates;
  for (size_t s = 0; enough && s < kSlots; ++s) {
    const Slot& slot = slots_[s];
    if (slot.period != period_) continue;
    add(slot.id, static_cast<double>(slot.updates) / static_cast<double>(updates_));
  }
  for (const auto& [id, rate] : found_) {
    if (!enough || !SampledLocked(Mix64(id))) add(id, rate);
  }
  const auto hotter = [](const Row& a, const Row& b) {
    return a.row_staleness != b.row_staleness ? a.row_staleness > b.row_staleness : a.id < b.id;
  };
  if (frequent.rows.size() > limit) {
    std::nth_element(frequent.rows.begin(), frequent.rows.begin() + limit, frequent.rows.end(), hotter);
    frequent.rows.resize(limit);
  }
  std::sort(frequent.rows.begin(), frequent.rows.end(), hotter);
  return frequent;
}

}  // namespace tandem::ps
