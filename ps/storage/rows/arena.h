// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_ROWS_ARENA_H_
#define TANDEM_PS_STORAGE_ROWS_ARENA_H_

// Arena allocates the memory for the indexes of one table. It takes large regions from the system and hands
// them out in blocks. Regions use huge pages where the system offers them; with small pages every line
// touched would cost a TLB miss in addition to the cache miss.

#include <atomic>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::ps {

// Thread-safe. An arena must outlive its blocks.
class Arena {
 public:
  // A block of memory, aligned to a cache line, which its destructor releases. Movable; not thread-safe.
  class Block {
   public:
    Block() = default;
    Block(Block&& other) noexcept { *this = std::move(other); }
    Block& operator=(Block&& other) noexcept {
      std::swap(arena_, other.arena_);
      std::swap(data_, other.data_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Block() {
      if (data_ != nullptr) arena_->Release(data_, bytes_);
    }
    char* data() const { return data_; }
    size_t bytes() const { return bytes_; }

   private:
    friend class Arena;
    Block(Arena* arena, char* data, size_t bytes) : arena_(arena), data_(data), bytes_(bytes) {}
    Arena* arena_ = nullptr;
    char* data_ = nullptr;
    size_t bytes_ = 0;
  };

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // Returns a block of zeros. A block of 2 MiB or more is a region of its own. The system clears its pages
  // when they are first touched, so that this call does not pause for long. Throws std::bad_alloc if the
  // system has no more memory.
  Block AllocateZeroed(size_t bytes);
  // As AllocateZeroed, but all pages are present when the call returns. The call is slow and best made with
  // no lock held.
  Block AllocateReady(size_t bytes);
  // Returns the memory held from the system, whether or not it is handed out. The pages of large holes have
  // been returned to the system and do not count.
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Region {
    size_t bytes;
    size_t used;  // in blocks
  };

  void Release(char* data, size_t bytes);
  char* TakeLocked(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // While a large hole is listed, bytes() does not count its pages. AddHoleLocked and RemoveHoleLocked
  // account for that.
  void AddHoleLocked(char* data, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveHoleLocked(char* data, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddRegionLocked(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::map<char*, Region>::iterator RegionOfLocked(char* data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::atomic<size_t> bytes_{0};
  absl::Mutex mutex_;
  std::map<char*, Region> regions_ ABSL_GUARDED_BY(mutex_);
  // Holes by address, to merge adjacent ones, and by size, to find the best fit.
  std::map<char*, size_t> holes_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<size_t, char*>> holes_by_size_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROWS_ARENA_H_
