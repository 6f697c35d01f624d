// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_ROW_EVICTOR_H_
#define TANDEM_PS_STORAGE_ROW_EVICTOR_H_

// RowEvictor selects the rows that leave memory, when their bucket has used up its share of the byte budget
// or by age, and erases them. (In tables that spill, RowSpiller moves the selected rows to disk instead.)

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "ps/policies/eviction.h"
#include "ps/storage/buckets.h"
#include "ps/storage/recent_rows.h"

namespace tandem::ps {

// Thread-safe, except for functions that require a lock. `buckets` must outlive the evictor.
class RowEvictor {
 public:
  // `policy` is nullptr in tables without eviction, for which only SweepNext may be called.
  RowEvictor(Buckets* buckets, std::unique_ptr<Eviction> policy)
      : buckets_(buckets), policy_(std::move(policy)) {}

  // Returns the ids of the rows of lowest priority, all but 15/16 of the quota. Rows in `spared`, unless it
  // is nullptr, have the highest priority. Requires the bucket's lock, and that the bucket is over its quota.
  std::vector<uint64_t> LowestPriority(uint32_t bucket, uint32_t now, const RecentRows* spared) const;
  // Erases the rows that LowestPriority returns. Requires the bucket's lock, exclusively.
  void EvictToQuota(uint32_t bucket, uint32_t now);
  // Erases the expired rows of one bucket, which the update number `time` chooses, if rows can expire in this
  // table. Takes the bucket's lock.
  void SweepNext(uint64_t time);

  uint64_t evicted_rows() const { return evicted_.load(std::memory_order_relaxed); }

 private:
  RowStats StatsOf(const RowStore& store, const Buckets::Cell& cell, uint32_t now,
                   std::vector<float>* floats) const;
  void EraseRows(RowStore* store, absl::Span<const uint64_t> ids);

  Buckets* const buckets_;
  const std::unique_ptr<Eviction> policy_;
  std::atomic<uint64_t> evicted_{0};
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROW_EVICTOR_H_
