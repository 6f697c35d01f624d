// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SUBSCRIPTION_BUCKET_EDITS_H_
#define TANDEM_PS_SUBSCRIPTION_BUCKET_EDITS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ps/subscription/row_changes.h"

namespace tandem::ps {

// Collects the changes of one bucket, and keeps the last one of each id. Takes at most about twice the memory
// of these, however often rows change. Not thread-safe.
class BucketEdits {
 public:
  // Adds later changes of the bucket. All have the same `dim`.
  void Add(const RowChanges& changes) {
    if (changes.whole) *this = BucketEdits();
    whole_ = whole_ || changes.whole;
    dim_ = changes.dim;
    for (const uint64_t id : changes.removed) edits_.push_back({id, kRemoved});
    for (const uint64_t id : changes.ids) edits_.push_back({id, next_row_++});
    rows_.insert(rows_.end(), changes.rows.begin(), changes.rows.end());
    if (edits_.size() > 2 * settled_ + kFew) Settle();
  }

  // Returns whether the bucket has no other rows than these.
  bool whole() const { return whole_; }

  // Calls visit(id, row) in ascending order of id; `row` is [dim], or nullptr if the row was removed.
  template <typename Visit>
  void ForEach(const Visit& visit) {
    Settle();
    for (const Edit& edit : edits_) {
      visit(edit.id, edit.row == kRemoved ? nullptr : rows_.data() + edit.row * dim_);
    }
  }

 private:
  struct Edit {
    uint64_t id;
    uint64_t row;  // number in rows_, or kRemoved
  };
  static constexpr uint64_t kRemoved = ~uint64_t{0};
  static constexpr size_t kFew = 64;

  // Sorts, and drops all but the last edit of each id.
  void Settle() {
    std::stable_sort(edits_.begin(), edits_.end(), [](const Edit& a, const Edit& b) { return a.id < b.id; });
    std::vector<Edit> kept;
    std::vector<float> rows;
    for (size_t i = 0; i < edits_.size(); ++i) {
      if (i + 1 < edits_.size() && edits_[i + 1].id == edits_[i].id) continue;
      Edit edit = edits_[i];
      if (edit.row != kRemoved) {
        const auto from = rows_.begin() + static_cast<std::ptrdiff_t>(edit.row * dim_);
        edit.row = rows.size() / dim_;
        rows.insert(rows.end(), from, from + dim_);
      }
      kept.push_back(edit);
    }
    edits_ = std::move(kept);
    rows_ = std::move(rows);
    next_row_ = rows_.size() / std::max<size_t>(dim_, 1);
    settled_ = edits_.size();
  }

  bool whole_ = false;
  uint32_t dim_ = 0;
  uint64_t next_row_ = 0;
  size_t settled_ = 0;  // the number of edits after the last call of Settle
  std::vector<Edit> edits_;
  std::vector<float> rows_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SUBSCRIPTION_BUCKET_EDITS_H_
