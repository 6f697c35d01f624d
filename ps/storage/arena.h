#ifndef TANDEM_PS_STORAGE_ARENA_H_
#define TANDEM_PS_STORAGE_ARENA_H_

// Memory for the rows of one table, taken from the system in large pieces (huge pages where the system offers
// them: with small ones every row touched would cost a TLB miss besides the cache miss) and handed to the
// buckets in slabs.

#include <atomic>
#include <cstddef>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::ps {

// Memory that gives itself back. Aligned to a cache line, from 2 MiB on to a huge page, and then advised to
// be one.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  explicit AlignedMemory(size_t bytes);
  char* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(char* data) const;
  };
  std::unique_ptr<char, Free> data_;
  size_t bytes_ = 0;
};

// Thread-safe. Slabs keep their region alive, so they may outlive the arena's interest in it, not the arena
// itself.
class Arena {
 public:
  struct Slab {
    std::shared_ptr<const void> region;  // keeps `data` alive
    char* data = nullptr;                // aligned to a cache line
    size_t bytes = 0;
  };

  // A slab of 1 to `count` units of `unit` bytes, contents unspecified: fewer than `count` when that uses up
  // what is left of a region. Regions grow with the table, by an eighth, so that little is held in reserve.
  Slab Allocate(size_t unit, size_t count);
  // Starts a new region with the next slab: called when all slabs are being given up, so that the old regions
  // can go.
  void StartAfresh();
  // Held from the system, handed out or not.
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Region;

  std::atomic<size_t> bytes_{0};
  absl::Mutex mutex_;
  std::shared_ptr<Region> region_ ABSL_GUARDED_BY(mutex_);
  size_t used_ ABSL_GUARDED_BY(mutex_) = 0;  // of region_
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ARENA_H_
