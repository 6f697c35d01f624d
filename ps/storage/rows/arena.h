#ifndef TANDEM_PS_STORAGE_ROWS_ARENA_H_
#define TANDEM_PS_STORAGE_ROWS_ARENA_H_

// Memory for the indexes of one table, taken from the system in large regions (huge pages where the system
// offers them: with small ones every line touched would cost a TLB miss besides the cache miss) and handed
// out in blocks.

#include <atomic>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::ps {

// Thread-safe. Outlives its blocks.
class Arena {
 public:
  // A piece of memory, aligned to a cache line, that gives itself back. Movable; not thread-safe.
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

  // A block of zeros. From 2 MiB on it is a region of its own, whose pages the system clears when they are
  // first touched, so that a large one costs no long pause here. Throws std::bad_alloc when the system has no
  // more.
  Block AllocateZeroed(size_t bytes);
  // The same, with pages that are all there: slow, and best called under no lock.
  Block AllocateReady(size_t bytes);
  // Held from the system, handed out or not. The pages of large holes are given back.
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Region {
    size_t bytes;
    size_t used;  // in blocks
  };

  void Release(char* data, size_t bytes);
  char* TakeLocked(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // From then on, and no longer, `bytes` leaves out the hole's pages if it is large.
  void AddHoleLocked(char* data, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveHoleLocked(char* data, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddRegionLocked(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::map<char*, Region>::iterator RegionOfLocked(char* data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::atomic<size_t> bytes_{0};
  absl::Mutex mutex_;
  std::map<char*, Region> regions_ ABSL_GUARDED_BY(mutex_);
  // Holes by address, to be joined with their neighbours, and by size, for the best fit.
  std::map<char*, size_t> holes_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<size_t, char*>> holes_by_size_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROWS_ARENA_H_
