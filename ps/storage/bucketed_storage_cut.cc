// SPDX-License-Identifier: Apache-2.0
// The rows of one moment, visited while updates go on: BeginCut, VisitCut and EndCut of BucketedStorage.

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ps/storage/bucketed_storage.h"

namespace tandem::ps {
namespace {

// Rows that are copied under one hold of a bucket's lock. Updates wait for it.
constexpr size_t kRowsAtOnce = 256;

}  // namespace

void BucketedStorage::BeginCut() {
  EndCut(/*keep=*/false);
  new_cut_ = buckets_.clock();
  has_new_cut_ = true;
  for (uint32_t b = 0; b < buckets_.num_buckets(); ++b) {
    const FairLock::Writer lock(&buckets_.LockOfBucket(b));
    buckets_.cut().Open(b, evictor_.SplitRemoved(b));
    admission_.BeginCut(b);
  }
}

void BucketedStorage::EndCut(bool keep) {
  if (!std::exchange(has_new_cut_, false)) return;
  for (uint32_t b = 0; b < buckets_.num_buckets(); ++b) {
    const FairLock::Writer lock(&buckets_.LockOfBucket(b));
    buckets_.cut().Close(b);
    RemovedRows removed = buckets_.cut().TakeRemoved(b);
    if (!keep) evictor_.UnsplitRemoved(b, std::move(removed));
    admission_.EndCut(b, keep);
  }
  if (!keep) return;
  cut_ = new_cut_;
  has_cut_ = true;
}

absl::StatusOr<BucketChanges> BucketedStorage::VisitCut(uint32_t bucket, bool whole, RowVisitor visit) {
  TANDEM_CHECK(bucket < buckets_.num_buckets());
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  FairLock& lock_of_bucket = buckets_.LockOfBucket(bucket);
  const RowLayout& layout = buckets_.layout();
  const RowCut& cut = buckets_.cut();
  const auto since = static_cast<uint32_t>(cut_);
  BucketChanges changes;
  std::vector<uint64_t> ids;
  {
    const FairLock::Reader lock(&lock_of_bucket);
    if (!cut.is_open(bucket)) {
      return absl::FailedPreconditionError(absl::StrCat("bucket ", bucket, " has no cut, or was visited"));
    }
    const RemovedRows& removed = cut.removed(bucket);
    changes.whole = whole || !has_cut_ || new_cut_ - cut_ >= uint64_t{1} << 31 || removed.too_many();
    changes.filter = admission_.SaveOfCut(bucket);
    changes.filter_bytes = changes.filter.size();
    if (!changes.whole) {
      changes.filter = admission_.ChangesUntilCut(bucket);
      changes.removed = removed.Sorted();
    }
    if (spiller_ == nullptr) {
      // The rows that may be of the cut, by their present versions, and those that have changed since.
      std::as_const(buckets_).store(bucket).index().ForEach([&](const Buckets::Cell& cell) {
        if (changes.whole || Buckets::ChangedSince(cell.version, since)) ids.push_back(cell.id);
      });
      cut.AppendIds(bucket, &ids);
    }
  }
  const auto is_wanted = [&](uint32_t version) {
    return changes.whole || Buckets::ChangedSince(version, since);
  };
  if (spiller_ != nullptr) {
    // Rows of such tables do not leave the table, so each one of the cut is visited.
    std::vector<float> floats(layout.row_floats());
    const auto visit_one = [&](uint64_t id, const float* row, const RowHistory& history) {
      RowCut::Copy copy;
      if (!cut.Find(bucket, id, &copy)) return visit(id, row, history);
      if (copy.row == nullptr || !is_wanted(copy.version)) return;
      buckets_.ReadRow(copy.row, floats.data());
      visit(id, floats.data(), {copy.version, layout.count(copy.row)});
    };
    TANDEM_RETURN_IF_ERROR(
        changes.whole ? spiller_->VisitRows(bucket, 0, std::numeric_limits<size_t>::max(), visit_one).status()
                      : spiller_->VisitChanges(bucket, since, visit_one));
  } else {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    const RowStore& store = std::as_const(buckets_).store(bucket);
    std::vector<std::pair<uint64_t, RowHistory>> rows;
    std::vector<float> floats(std::min(ids.size(), kRowsAtOnce) * layout.row_floats());
    for (size_t begin = 0; begin < ids.size(); begin += kRowsAtOnce) {
      rows.clear();
      {
        const FairLock::Reader lock(&lock_of_bucket);
        for (const uint64_t id : absl::MakeConstSpan(ids).subspan(begin, kRowsAtOnce)) {
          RowCut::Copy row;
          if (!cut.Find(bucket, id, &row)) {
            const Buckets::Cell* const cell = store.index().Find(id);
            if (cell == nullptr) continue;
            row = {.version = cell->version, .row = store.RowAt(cell->slot)};
          }
          if (row.row == nullptr || !is_wanted(row.version)) continue;
          buckets_.ReadRow(row.row, floats.data() + rows.size() * layout.row_floats());
          rows.push_back({id, {row.version, layout.count(row.row)}});
        }
      }
      for (size_t i = 0; i < rows.size(); ++i) {
        visit(rows[i].first, floats.data() + i * layout.row_floats(), rows[i].second);
      }
    }
  }
  const FairLock::Writer lock(&lock_of_bucket);
  buckets_.cut().Close(bucket);
  return changes;
}

}  // namespace tandem::ps
