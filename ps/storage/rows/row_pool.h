#ifndef TANDEM_PS_STORAGE_ROWS_ROW_POOL_H_
#define TANDEM_PS_STORAGE_ROWS_ROW_POOL_H_

// The memory of all rows of a table, as slots: each has room for one row and is known by a number that counts
// through all buckets.
//
// Slot 0 is nobody's and reads as zeros: what a lookup finds that finds nothing, so that it need not branch.
//
// Slots lie in chunks of 2^k, up to 32 MiB each, so that slot s is row s mod 2^k of chunk s / 2^k and the
// list of chunks of a table of any size stays in the first-level cache: lists of smaller chunks, one a
// bucket, cost every lookup 7 nanoseconds at a million rows and 25 at eight. Buckets take slots by runs.
// Chunks are of huge pages where the system has them, but for the first 16 MiB of a table, which small tables
// do not fill; memory that no slot has needed yet is only reserved.

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

// From a slot to its row: a copy of its own of what the pool says, for loops that must not read it again and
// again. Serves for all slots that were taken before it was made.
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

// Thread-safe. `layout` must outlive it; all runs must be back before it goes.
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

  // A run of 1 to `count` slots, contents unspecified: fewer than `count` when that fills a hole that would
  // otherwise stay empty. Throws std::bad_alloc when the system has no more memory or 2^32 slots are taken.
  Run Take(uint32_t count);
  void Release(Run run);
  // Has the system clear the pages of the next `count` slots that have never been used, and of some more in a
  // table that is large (buckets take them by long runs), so that who takes them (with a bucket locked) does
  // not wait for it.
  void Prepare(uint32_t count);

  RowAddress address() const { return RowAddress(chunks_.load(std::memory_order_acquire), shift_, stride_); }
  char* RowAt(uint32_t slot) const { return address().Of(slot); }
  // Of the pages that rows ever lay on in chunks still held.
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Chunk {
    char* data = nullptr;    // nullptr: not there
    size_t used = 0;         // slots
    size_t held_bytes = 0;   // [0, held_bytes) has been handed out at some time
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
  // Where each chunk lies. A list that is full is replaced by one twice as long; the old ones stay, since
  // readers may be at them.
  std::vector<std::unique_ptr<char*[]>> lists_ ABSL_GUARDED_BY(mutex_);
  size_t list_size_ ABSL_GUARDED_BY(mutex_) = 0;
  // Chunk 0 is zero_row_ alone; none of its other slots is ever taken.
  std::vector<Chunk> all_ ABSL_GUARDED_BY(mutex_);
  // Holes by first slot, to be joined with their neighbours, and by size, for the best fit.
  std::map<uint32_t, uint32_t> holes_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<uint32_t, uint32_t>> holes_by_size_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROWS_ROW_POOL_H_
