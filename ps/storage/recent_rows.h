// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_RECENT_ROWS_H_
#define TANDEM_PS_STORAGE_RECENT_ROWS_H_

// RecentRows remembers which rows of a bucket came to memory recently. Eviction spares them: a row that a
// pull has brought from disk must still be in memory when its push comes, or every push would read it from
// disk again.

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_set.h"

namespace tandem::ps {

// Not thread-safe, but const methods may run concurrently.
class RecentRows {
 public:
  // Notes that the row of `id` came to memory when the low half of the table's clock was `now`. A row is
  // remembered for one to two times kUpdates updates, or until a quarter to half of `quota` rows have come
  // after it.
  void Add(uint64_t id, uint32_t now, uint32_t quota) {
    if (now - younger_since_ > kUpdates || younger_.size() >= quota / 4) {
      young_.swap(younger_);
      younger_.clear();
      younger_since_ = now;
    }
    younger_.insert(id);
  }
  bool Contains(uint64_t id) const { return young_.contains(id) || younger_.contains(id); }
  void Clear() {
    young_.clear();
    younger_.clear();
  }
  // Returns the memory of the sets.
  size_t bytes() const { return (young_.capacity() + younger_.capacity()) * (sizeof(uint64_t) + 1); }

 private:
  static constexpr uint32_t kUpdates = 32;

  absl::flat_hash_set<uint64_t> young_, younger_;
  uint32_t younger_since_ = 0;  // the low half of the table's clock
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_RECENT_ROWS_H_
