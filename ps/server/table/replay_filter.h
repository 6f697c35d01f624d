// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_TABLE_REPLAY_FILTER_H_
#define TANDEM_PS_SERVER_TABLE_REPLAY_FILTER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "ps/server/table/table_push.h"
#include "ps/shard_map.h"

namespace tandem::ps {

// Tells which pushes the rows of a restored table contain already. The buckets of a snapshot were copied at
// different positions of the log, while updates went on; the log is replayed from the first of them.
class ReplayFilter {
 public:
  // The buckets `missing` come during the replay, each right behind the record of its position. Until then
  // they count as containing everything: the rows that come contain what was replayed before.
  explicit ReplayFilter(uint32_t num_buckets, const std::vector<uint32_t>& missing = {})
      : buckets_(num_buckets), missing_(missing.size()) {
    for (const uint32_t bucket : missing) buckets_[bucket].position = kMissing;
  }

  // Records that the bucket contains the pushes up to `position` except those that were `queued`.
  template <typename Positions>
  void SetBucket(uint32_t bucket, uint64_t position, const Positions& queued) {
    if (buckets_[bucket].position == kMissing) --missing_;
    buckets_[bucket] = {position, {queued.begin(), queued.end()}};
    last_ = std::max(last_, position);
  }
  // Returns whether the bucket has not come.
  bool IsMissing(uint32_t bucket) const { return buckets_[bucket].position == kMissing; }
  // Returns the number of buckets that have not come.
  size_t missing_buckets() const { return missing_; }
  // Returns the largest position of a bucket.
  uint64_t last() const { return last_; }
  // Returns whether some bucket may contain the push at `log_position`.
  bool Concerns(uint64_t log_position) const { return missing_ > 0 || log_position <= last_; }
  // Returns whether the row of `id` contains the push at `log_position`.
  bool Contains(uint64_t id, uint64_t log_position) const {
    const Bucket& bucket = buckets_[BucketOf(id, static_cast<uint32_t>(buckets_.size()))];
    return log_position <= bucket.position && !bucket.queued.contains(log_position);
  }
  // Returns the push with only those ids whose rows do not contain it.
  TablePush Rest(const TablePush& push, uint32_t dim) const;

 private:
  struct Bucket {
    uint64_t position = 0;
    absl::flat_hash_set<uint64_t> queued = {};
  };
  static constexpr uint64_t kMissing = ~uint64_t{0};
  std::vector<Bucket> buckets_;
  size_t missing_ = 0;
  uint64_t last_ = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_REPLAY_FILTER_H_
