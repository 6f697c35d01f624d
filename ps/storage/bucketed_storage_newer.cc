// SPDX-License-Identifier: Apache-2.0
// The rows that have changed since a number of updates, for subscribers: VisitNewer of BucketedStorage.

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "ps/storage/bucketed_storage.h"

namespace tandem::ps {

absl::StatusOr<NewerRows> TableStorage::VisitNewer(uint32_t bucket, uint64_t /*since*/, bool /*whole*/,
                                                   uint64_t first_id, size_t limit, RowVisitor visit) {
  TANDEM_ASSIGN_OR_RETURN(const bool more, VisitRows(bucket, first_id, limit, visit));
  return NewerRows{.whole = true, .more = more};
}

void BucketedStorage::BeginRemovalLog() {
  if (records_removals_.exchange(true)) return;
  for (uint32_t b = 0; b < buckets_.num_buckets(); ++b) {
    const FairLock::Writer lock(&buckets_.LockOfBucket(b));
    evictor_.BeginRemovalLog(b);
  }
}

absl::StatusOr<NewerRows> BucketedStorage::VisitNewer(uint32_t bucket, uint64_t since, bool whole,
                                                      uint64_t first_id, size_t limit, RowVisitor visit) {
  TANDEM_CHECK(bucket < buckets_.num_buckets());
  TANDEM_CHECK(limit > 0);
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  NewerRows newer;
  const auto since_version = static_cast<uint32_t>(since);
  const bool begins = first_id == 0;
  const uint64_t clock = buckets_.clock();
  newer.whole = whole || (begins && clock > since && clock - since >= uint64_t{1} << 31);
  uint64_t visited = 0;
  // Rows on disk are read one after the other, so that those which are not wanted are skipped here.
  if (spiller_ != nullptr && !newer.whole) {
    // Rows of these tables do not leave the table.
    TANDEM_RETURN_IF_ERROR(spiller_->VisitChanges(
        bucket, since_version, [&](uint64_t id, const float* row, const RowHistory& history) {
          if (id < first_id) return;
          if (visited == limit) {
            newer.more = true;
            return;
          }
          ++visited;
          visit(id, row, history);
        }));
    return newer;
  }
  if (!newer.whole) {
    const FairLock::Reader lock(&buckets_.LockOfBucket(bucket));
    const RemovalLog* const removals = evictor_.removals(bucket);
    newer.whole = begins && removals != nullptr && !removals->Covers(since);
    if (!newer.whole) {
      const RowLayout& layout = buckets_.layout();
      const RowStore& store = std::as_const(buckets_).store(bucket);
      if (begins && removals != nullptr) {
        absl::flat_hash_set<uint64_t> removed;
        removals->ForEachSince(since_version, [&](uint64_t id) {
          if (store.Find(id) == nullptr) removed.insert(id);
        });
        newer.removed.assign(removed.begin(), removed.end());
        std::sort(newer.removed.begin(), newer.removed.end());
      }
      std::vector<float> floats(layout.row_floats());
      for (const Buckets::StoredRow& row : buckets_.SortedChanges(bucket, since_version, first_id)) {
        if (visited++ == limit) {
          newer.more = true;
          break;
        }
        buckets_.ReadRow(row.row, floats.data());
        visit(row.id, floats.data(), {row.version, layout.count(row.row)});
      }
      return newer;
    }
  }
  TANDEM_ASSIGN_OR_RETURN(newer.more, VisitRows(bucket, first_id, limit, visit));
  return newer;
}

}  // namespace tandem::ps
