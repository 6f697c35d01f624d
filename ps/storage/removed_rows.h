// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_REMOVED_ROWS_H_
#define TANDEM_PS_STORAGE_REMOVED_ROWS_H_

// RemovedRows records the ids of the rows that eviction has removed from one bucket since the last cut
// (TableStorage::MarkCut, EndCut). An incremental checkpoint contains them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace tandem::ps {

// Not thread-safe: the bucket's lock guards it.
class RemovedRows {
 public:
  // Begins to record, and forgets the ids recorded before. Before the first call nothing is recorded.
  void Begin() {
    ids_ = {};
    records_ = true;
    too_many_ = false;
  }
  // Returns what is recorded, and begins anew.
  RemovedRows Split() {
    RemovedRows before = std::move(*this);
    Begin();
    return before;
  }
  // Undoes Split, with what it returned.
  void Unsplit(RemovedRows before) {
    if (before.records_) {
      before.too_many_ = before.too_many_ || too_many_;
      before.ids_.insert(before.ids_.end(), ids_.begin(), ids_.end());
      if (before.too_many_) before.ids_ = {};
    }
    *this = std::move(before);
  }
  // Records `ids`, removed from a bucket that then has `left` rows. At most half as many ids as there are
  // rows are kept, or kAlways: past that the bucket is cheaper to write as a whole.
  void Add(absl::Span<const uint64_t> ids, size_t left) {
    if (!records_ || too_many_) return;
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    if (ids_.size() <= std::max(kAlways, left / 2)) return;
    too_many_ = true;
    ids_ = {};
  }
  // True: more rows were removed than are recorded.
  bool too_many() const { return too_many_; }
  // Returns the recorded ids in ascending order, each once. Some may have a row again.
  std::vector<uint64_t> Sorted() const {
    std::vector<uint64_t> sorted = ids_;
    std::sort(sorted.begin(), sorted.end());
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    return sorted;
  }
  size_t bytes() const { return ids_.capacity() * sizeof(uint64_t); }

 private:
  static constexpr size_t kAlways = 64;

  std::vector<uint64_t> ids_;
  bool records_ = false;
  bool too_many_ = false;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_REMOVED_ROWS_H_
