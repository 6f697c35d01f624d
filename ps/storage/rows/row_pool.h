// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_ROWS_ROW_POOL_H_
#define TANDEM_PS_STORAGE_ROWS_ROW_POOL_H_

// RowPool holds the memory of all rows of a table, divided into slots. A slot stores one row. Slots are
// numbered through all buckets.
//
// Slot 0 belongs to no row and reads as zeros. A lookup that finds no row uses it, so that it need not
// branch.
//
// Slots are in chunks of 2^k slots, up to 32 MiB each: slot s is row s mod 2^k of chunk s / 2^k. The list of
// all chunks therefore stays in the first-level cache even for large tables. (One list of smaller chunks for
// each bucket cost every lookup 7 ns at one million rows and 25 ns at eight.) Buckets take slots in runs.
// Chunks use huge pages where the system has them, except for the first 16 MiB of a table, which small tables
// do not fill. Memory that no slot has needed yet is only reserved.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "ps/storage/rows/row_layout.h"

namespace tandem::ps {

inline constexpr uint32_t kNoSlot = 0;

// RowAddress maps slots to rows. It is a copy of the pool's chunk list pointer, for loops that should not
// read the pool each time. It is valid for all slots that were taken before it was made.
class RowAddress {
 public:
  RowAddress(char* const* chunks, uint32_t shift, size_t stride)
      : chunks_(chunks), shift_(shift), mask_((uint32_t{1} << shift) - 1), stride_(stride) {}
  char* Of(uint32_t slot) const { return chunks_[slot >> shift_] + size_t{slot & mask_} * stride_; }

 private:
  char* const* const chunks_;
  const uint32_t shift_;
  const uint32_t mask_;
  const size_t stride_;
};

// Thread-safe. `layout` must outlive the pool. All runs must be released before the pool is destroyed.
class RowPool {
 public:
  // Slots [begin, end) of one chunk.
  struct Run {
    uint32_t begin;
    uint32_t end;
    uint32_t size() const { return end - begin; }
  };

  explicit RowPool(const RowLayout* layout);
  RowPool(const RowPool&) = delete;
  RowPool& operator=(const RowPool&) = delete;
  ~RowPool();

  // Returns a run of 1 to `count` slots with unspecified contents. The run has fewer than `count` slots if it
  // fills a hole that would otherwise stay unused. Throws std::bad_alloc if the system has no more memory or
  // 2^32 slots are taken.
  Run Take(uint32_t count);
  // Returns a run to the pool.
  void Release(Run run);
  // Makes the system clear the pages of the next `count` slots that have never been used, and of some more in
  // a large table, where buckets take long runs. The thread that later takes these slots, with a bucket
  // locked, then does not wait for that. Best called with no lock held.
  void Prepare(uint32_t count);

  RowAddress address() const { return RowAddress(chunks_.load(std::memory_order_acquire), shift_, stride_); }
  char* RowAt(uint32_t slot) const { return address().Of(slot); }
  // Returns the size of the pages that rows have ever used, in chunks that are still held.
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Chunk {
    char* data = nullptr;    // nullptr: the chunk is not allocated
    size_t used = 0;         // slots that are taken
    size_t held_bytes = 0;   // [0, held_bytes) has been taken at some time
    size_t ready_bytes = 0;  // [0, ready_bytes) has been touched by Prepare
  };

  uint32_t slots_a_chunk() const { return uint32_t{1} << shift_; }
  size_t mapped_bytes() const;
  void LengthenListLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddChunkLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Run TakeLocked(Run hole, uint32_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddHoleLocked(Run hole) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveHoleLocked(Run hole) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t stride_;
  const uint32_t shift_;
  const std::unique_ptr<char[]> zero_row_;
  std::atomic<char* const*> chunks_{nullptr};  // the newest of lists_
  std::atomic<size_t> bytes_{0};

  absl::Mutex mutex_;
  // The addresses of all chunks. A full list is replaced by one twice as long. The old lists stay, because
  // readers may still use them.
  std::vector<std::unique_ptr<char*[]>> lists_ ABSL_GUARDED_BY(mutex_);
  size_t list_size_ ABSL_GUARDED_BY(mutex_) = 0;
  // Chunk 0 consists of zero_row_ only; none of its other slots is ever taken.
  std::vector<Chunk> all_ ABSL_GUARDED_BY(mutex_);
  // Holes by first slot, to merge adjacent ones, and by size, to find the best fit.
  std::map<uint32_t, uint32_t> holes_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<uint32_t, uint32_t>> holes_by_size_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROWS_ROW_POOL_H_
