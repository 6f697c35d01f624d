// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_ROW_EVICTOR_H_
#define TANDEM_PS_STORAGE_ROW_EVICTOR_H_

// RowEvictor selects the rows that leave memory and erases them. A row leaves for one of two reasons:
//
//   - its bucket has more rows than its quota (Buckets::quota), and the row's priority is low;
//   - the row has expired, because it was not updated for long.
//
// In tables that spill, RowSpiller moves the rows that LowestPriority selects to disk instead.
//
// Time is the table's clock, which counts updates (Buckets::clock). `now` is its low 32 bits.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "ps/policies/eviction.h"
#include "ps/storage/buckets.h"
#include "ps/storage/recent_rows.h"
#include "ps/storage/removal_log.h"
#include "ps/storage/removed_rows.h"

namespace tandem::ps {

// Thread-safe, if the caller holds the locks that the functions require. `buckets` must outlive the evictor.
class RowEvictor {
 public:
  // A row whose version is up to this many updates ahead of the clock is taken for a new one.
  static constexpr uint32_t kMostAhead = uint32_t{1} << 20;

  // `policy` is nullptr in tables without eviction. Then SweepNext has no effect, and LowestPriority and
  // EvictToQuota must not be called.
  RowEvictor(Buckets* buckets, std::unique_ptr<Eviction> policy)
      : buckets_(buckets),
        policy_(std::move(policy)),
        removed_(policy_ == nullptr ? nullptr : new RemovedRows[buckets->num_buckets()]),
        removals_(policy_ == nullptr ? nullptr : new RemovalLog[buckets->num_buckets()]) {}

  // Returns the number of updates since that with the version `version`. `now` is modulo 2^32. A row of an
  // update that overtook this one (ASYNC) is new, not four billion updates old.
  static uint32_t AgeOf(uint32_t now, uint32_t version) {
    const uint32_t age = now - version;
    return static_cast<int32_t>(age) < 0 && age > ~uint32_t{0} - kMostAhead ? 0 : age;
  }
  // Returns the table's policy; nullptr in tables without eviction.
  const Eviction* policy() const { return policy_.get(); }

  // Returns the ids of the rows that must leave so that 15/16 of the quota, counted in rows, remain: those of
  // the lowest Eviction::Priority, in no particular order. Rows in `spared`, unless it is nullptr, have the
  // highest priority; they leave only if the other rows are too few. Requires the bucket's lock, shared or
  // exclusively, and that the bucket has more rows than its quota.
  std::vector<uint64_t> LowestPriority(uint32_t bucket, uint32_t now, const RecentRows* spared) const;
  // Erases the rows that LowestPriority returns if no rows are spared. Requires the bucket's lock,
  // exclusively, and that the bucket has more rows than its quota.
  void EvictToQuota(uint32_t bucket, uint32_t now);
  // Erases the expired rows of the bucket with number `time` modulo the number of buckets, so that successive
  // updates visit all buckets in turn. `time` is the clock of the update that calls. No effect if rows do not
  // expire in this table (Eviction::sweeps). Blocks until it has the bucket's lock, exclusively.
  void SweepNext(uint64_t time);

  // Begins to record the rows that are erased from `bucket`, and forgets those recorded before. Requires the
  // bucket's lock, exclusively.
  void RecordRemoved(uint32_t bucket) {
    if (removed_ != nullptr) removed_[bucket].Begin();
  }
  // Begins to record anew, and returns what was recorded before; UnsplitRemoved puts it back. Both require
  // the bucket's lock, exclusively.
  RemovedRows SplitRemoved(uint32_t bucket) {
    return removed_ == nullptr ? RemovedRows() : removed_[bucket].Split();
  }
  void UnsplitRemoved(uint32_t bucket, RemovedRows before) {
    if (removed_ != nullptr) removed_[bucket].Unsplit(std::move(before));
  }
  // Returns what was recorded. Requires the bucket's lock.
  const RemovedRows& removed(uint32_t bucket) const {
    static const RemovedRows none;
    return removed_ == nullptr ? none : removed_[bucket];
  }

  // Begins to record the removals from `bucket` for subscribers. Requires the bucket's lock, exclusively.
  void BeginRemovalLog(uint32_t bucket) {
    if (removals_ != nullptr) removals_[bucket].Begin();
  }
  // Returns that record; nullptr if rows are never erased. Requires the bucket's lock.
  const RemovalLog* removals(uint32_t bucket) const {
    return removals_ == nullptr ? nullptr : &removals_[bucket];
  }

  // Returns the number of rows that EvictToQuota and SweepNext have erased. Rows that went to disk are not
  // counted.
  uint64_t evicted_rows() const { return evicted_.load(std::memory_order_relaxed); }

 private:
  RowStats StatsOf(const RowStore& store, const Buckets::Cell& cell, uint32_t now,
                   std::vector<float>* floats) const;
  void EraseRows(uint32_t bucket, absl::Span<const uint64_t> ids, uint32_t now);

  Buckets* const buckets_;
  const std::unique_ptr<Eviction> policy_;
  std::atomic<uint64_t> evicted_{0};
  const std::unique_ptr<RemovedRows[]> removed_;  // one for each bucket; nullptr: rows are never erased
  const std::unique_ptr<RemovalLog[]> removals_;  // the same
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROW_EVICTOR_H_
