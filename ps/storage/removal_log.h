// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_REMOVAL_LOG_H_
#define TANDEM_PS_STORAGE_REMOVAL_LOG_H_

// RemovalLog records which rows eviction has removed from one bucket, and when, for subscribers
// (TableStorage::VisitNewer). Checkpoints have a record of their own, RemovedRows, which each cut begins
// anew.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace tandem::ps {

// Not thread-safe: the bucket's lock guards it.
class RemovalLog {
 public:
  // Begins to record. No effect if it records already.
  void Begin() { records_ = true; }
  // Records `ids`, which the update with number `now` removed from a bucket that then has `left` rows.
  // `clock` is the table's clock. At most half as many ids as there are rows are kept, or kAlways. Past that
  // the record begins anew.
  void Add(absl::Span<const uint64_t> ids, uint32_t now, uint64_t clock, size_t left) {
    if (!records_) return;
    for (const uint64_t id : ids) removed_.push_back({id, now});
    if (removed_.size() <= std::max(kAlways, left / 2)) return;
    removed_ = {};
    complete_since_ = clock + 1;
  }
  // Returns whether the record has every removal by the updates numbered `since` and later that came after
  // Begin.
  bool Covers(uint64_t since) const { return records_ && since >= complete_since_; }
  // Calls visit(id) for the removals by the updates numbered `since` and later. An id may be visited twice.
  template <typename Visit>
  void ForEachSince(uint32_t since, const Visit& visit) const {
    for (const auto& [id, version] : removed_) {
      if (static_cast<int32_t>(version - since) >= 0) visit(id);
    }
  }
  size_t bytes() const { return removed_.capacity() * sizeof(removed_[0]); }

 private:
  static constexpr size_t kAlways = 64;

  std::vector<std::pair<uint64_t, uint32_t>> removed_;  // id and number of the update
  uint64_t complete_since_ = 0;
  bool records_ = false;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_REMOVAL_LOG_H_
