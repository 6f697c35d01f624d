// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_ROW_CUT_H_
#define TANDEM_PS_STORAGE_ROW_CUT_H_

// RowCut keeps the rows of a moment, the cut, while updates go on: an update copies a row here before it
// changes the row (copy on write). A checkpoint reads the copies where there are any, and the table's rows
// elsewhere.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "ps/storage/removed_rows.h"
#include "ps/storage/rows/row_layout.h"

namespace tandem::ps {

// Functions with a `bucket` require its lock, exclusively unless they are const.
class RowCut {
 public:
  // A row as it was at the cut.
  struct Copy {
    uint32_t version = 0;
    const char* row = nullptr;  // as in memory (row_layout.h); nullptr: the id had no row
  };

  // `layout` must outlive this object.
  RowCut(const RowLayout* layout, uint32_t num_buckets)
      : layout_(*layout), buckets_(std::make_unique<Bucket[]>(num_buckets)) {}

  // Makes this moment the cut of `bucket`. `removed`: the rows that were removed from it since the cut
  // before.
  void Open(uint32_t bucket, RemovedRows removed) {
    buckets_[bucket].open = true;
    buckets_[bucket].removed = std::move(removed);
    open_.fetch_add(1, std::memory_order_relaxed);
  }
  // Ends the cut of `bucket`, whose copies are freed. No effect if it has ended.
  void Close(uint32_t bucket);
  // Returns whether any bucket has a cut. A caller that holds a bucket's lock sees `true` if that bucket has
  // one.
  bool any_open() const { return open_.load(std::memory_order_relaxed) > 0; }
  bool is_open(uint32_t bucket) const { return buckets_[bucket].open; }

  // Must be called before a row is created (with nullptr), changed, or removed from the table. Copies the row
  // if `bucket` has a cut and the row has not changed since. No effect otherwise.
  void Keep(uint32_t bucket, uint64_t id, uint32_t version, const char* row) {
    if (any_open() && buckets_[bucket].open) KeepOnce(&buckets_[bucket], id, version, row);
  }

  // Returns false if the row of `id` has not changed since the cut of `bucket`. Otherwise sets `copy` to the
  // row of that moment, which is valid while the lock is held.
  bool Find(uint32_t bucket, uint64_t id, Copy* copy) const;
  // Appends the ids of the copied rows, without those that did not exist.
  void AppendIds(uint32_t bucket, std::vector<uint64_t>* ids) const;
  const RemovedRows& removed(uint32_t bucket) const { return buckets_[bucket].removed; }
  RemovedRows TakeRemoved(uint32_t bucket) { return std::move(buckets_[bucket].removed); }

  // Returns the memory of all copies. Requires no lock.
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Bucket {
    bool open = false;
    absl::flat_hash_map<uint64_t, size_t> copies;  // index in rows, or kNoRow
    std::vector<uint32_t> rows;                    // of each copy: version, then the row
    RemovedRows removed;
  };
  static constexpr size_t kNoRow = ~size_t{0};

  void KeepOnce(Bucket* bucket, uint64_t id, uint32_t version, const char* row);

  const RowLayout& layout_;
  const std::unique_ptr<Bucket[]> buckets_;
  std::atomic<uint32_t> open_{0};  // number of buckets with a cut
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROW_CUT_H_
