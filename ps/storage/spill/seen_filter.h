// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_SPILL_SEEN_FILTER_H_
#define TANDEM_PS_STORAGE_SPILL_SEEN_FILTER_H_

// SeenFilter remembers, approximately, which ids have ever been put on disk. A table sees new ids all the
// time; the filter saves it from asking the disk for their rows.
//
// It is a scalable Bloom filter (Almeida, Baquero, Preguica and Hutchison, IPL 2007): when one filter is
// full, a filter of twice the capacity is added. Each filter has one-word blocks (Putze, Sanders and Singler,
// WEA 2007), so that an id costs one cache miss per filter. A full filter takes 12.8 bits per id and has a
// false positive rate of about 1 %. The rates of the filters add up.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"

namespace tandem::ps {

// Not thread-safe, but const methods may run concurrently.
class SeenFilter {
 public:
  // `first_capacity` is the number of ids that the first filter holds; it is raised to 64 if it is less.
  // Allocates nothing before the first Add.
  explicit SeenFilter(uint32_t first_capacity) : first_capacity_(first_capacity < 64 ? 64 : first_capacity) {}

  // Adds an id; no effect if MayContain(id). May allocate a filter of twice the last one's capacity.
  void Add(uint64_t id) {
    if (MayContain(id)) return;
    if (filters_.empty() || filters_.back().free == 0) {
      const uint64_t capacity = filters_.empty() ? first_capacity_ : filters_.back().capacity * 2;
      filters_.push_back({capacity, capacity, std::vector<uint64_t>(capacity / kIdsPerWord + 1)});
    }
    Filter& filter = filters_.back();
    --filter.free;
    const uint64_t hash = Hash(id);
    filter.words[filter.WordOf(hash)] |= BitsOf(hash);
  }
  // Returns true for every id that was added since the last Clear, and for a few others.
  bool MayContain(uint64_t id) const {
    const uint64_t hash = Hash(id);
    const uint64_t bits = BitsOf(hash);
    // The largest filter is searched first, because it has the most ids.
    for (size_t i = filters_.size(); i-- > 0;) {
      if ((filters_[i].words[filters_[i].WordOf(hash)] & bits) == bits) return true;
    }
    return false;
  }
  // Forgets all ids and frees the memory.
  void Clear() { filters_ = std::vector<Filter>(); }
  // Returns the bytes allocated, without the object itself.
  size_t bytes() const {
    size_t bytes = filters_.capacity() * sizeof(Filter);
    for (const Filter& filter : filters_) bytes += filter.words.capacity() * sizeof(uint64_t);
    return bytes;
  }

 private:
  static constexpr uint64_t kIdsPerWord = 5;
  static constexpr int kBits = 5;

  struct Filter {
    uint64_t capacity;
    uint64_t free;  // ids that may still be added
    std::vector<uint64_t> words;
    size_t WordOf(uint64_t hash) const {
      return static_cast<size_t>(((hash >> 32) * static_cast<uint64_t>(words.size())) >> 32);
    }
  };

  // A different hash than the one that chooses buckets and index lines, which all ids of a bucket share in
  // part.
  static uint64_t Hash(uint64_t id) { return Mix64(id ^ 0x5ee2f11735ee2f11); }
  static uint64_t BitsOf(uint64_t hash) {
    uint64_t bits = 0;
    for (int i = 0; i < kBits; ++i) bits |= uint64_t{1} << (hash >> (6 * i) & 63);
    return bits;
  }

  uint64_t first_capacity_;
  std::vector<Filter> filters_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_SPILL_SEEN_FILTER_H_
