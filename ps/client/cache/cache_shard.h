// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_CACHE_CACHE_SHARD_H_
#define TANDEM_PS_CLIENT_CACHE_CACHE_SHARD_H_

// One sixteenth of the cached rows of a table: an open-addressing index over records in one slab.
//
// A record is [header | row: dim floats]. In a cache for training (CacheLayout::kFollows)
// [gradients since the row arrived: dim floats] follows; if the cache defers gradients (kDefers), also
// [version | occurrences | deferred sums: dim floats]. The slab has space for as many records as the
// byte budget allows. Its pages are allocated when they are first used; no row has an allocation of its own.
//
// Admission and eviction: each copy counts its uses, and a small count-min sketch counts the uses of ids
// without a copy. Both counts are halved at every epoch. When the slab is full, a new row competes with the
// least used of a few copies drawn at random, and replaces it if it was used more often (TinyLFU: Einziger,
// Friedman and Manes, ACM Transactions on Storage 2017; random victims as in Redis). A cache for reading
// (CacheLayout::kPlain) refuses an id at its first use in an epoch without drawing: most ids of a large
// table are not used again.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.h"

namespace tandem::ps {

inline constexpr uint32_t kCacheShards = 16;

// Returns the shard of an id with this hash (base/random.h: Mix64). Buckets (ps/shard_map.h) and the index
// use other bits.
inline uint32_t CacheShardOf(uint64_t hash) { return static_cast<uint32_t>(hash >> 60); }

// Selects the parts of which a record consists.
enum class CacheLayout { kPlain, kFollows, kDefers };

// The header of a record.
struct CacheHeader {
  uint64_t id;
  // The low half of the table's version. The row contains all updates up to it. 0: the record is free.
  uint32_t version;
  uint32_t deferred;  // number of gradients in the deferred sums
  uint16_t uses;      // halved for every epoch after `epoch`
  uint16_t epoch;
  uint16_t served;   // pulls since the row arrived
  uint16_t arrived;  // how often the row has arrived, at most 65535
  // The least-squares fit of the row's changes to the sums of gradients, over the copies that have arrived.
  struct Fit {
    float change_times_gradient;  // sum of products of changes and gradients
    float gradient_squared;       // sum of squares of gradients
  };
  union {
    Fit fit;
    int64_t received_ns;  // kPlain: when the row was requested, in nanoseconds of the cache's clock
  };
  float moved;  // distance between consecutive copies
  // The step size: the gradients since the row arrived move the copy by -step times their sum.
  float step;
};

// Gradients that must be sent: those of evicted rows, of rows that have reached their bound, or of all rows.
struct DeferredGradients {
  std::vector<uint64_t> ids;
  // [ids]: the low half of the oldest version from which the id's gradients were computed.
  std::vector<uint32_t> versions;
  std::vector<uint32_t> occurrences;  // [ids]: of the id in the pushes of its gradients
  std::vector<float> sums;            // [ids x dim]
  void Append(const DeferredGradients& other);
  void Clear();
};

// One shard of a cache. Not thread-safe: the owner locks it. Const methods may run concurrently.
class CacheShard {
 public:
  // Returns how many rows fit into `bytes`, possibly 0.
  static uint32_t CapacityOf(size_t bytes, uint32_t dim, CacheLayout layout);

  // Allocates the shard. Must be called once before all other methods. Requires CapacityOf(...) > 0.
  void Init(size_t bytes, uint32_t dim, CacheLayout layout);

  // Returns where the search for an id begins, for a prefetch.
  const uint64_t* Cell(uint64_t hash) const { return cells_.data() + (static_cast<uint32_t>(hash) & mask_); }
  // Returns the record of `id`, or nullptr.
  CacheHeader* Find(uint64_t id, uint64_t hash) const {
    const uint32_t tag = static_cast<uint32_t>(hash);
    for (uint32_t at = tag & mask_; cells_[at] != 0; at = (at + 1) & mask_) {
      if (static_cast<uint32_t>(cells_[at] >> 32) != tag) continue;
      CacheHeader* const record = RecordAt(static_cast<uint32_t>(cells_[at]) - 1);
      if (record->id == id) return record;
    }
    return nullptr;
  }
  // Returns the likely record of an id, for a prefetch: the first one with its hash, or nullptr.
  const CacheHeader* Guess(uint64_t hash) const {
    const uint32_t tag = static_cast<uint32_t>(hash);
    for (uint32_t at = tag & mask_; cells_[at] != 0; at = (at + 1) & mask_) {
      if (static_cast<uint32_t>(cells_[at] >> 32) == tag)
        return RecordAt(static_cast<uint32_t>(cells_[at]) - 1);
    }
    return nullptr;
  }
  // Counts a use. May run concurrently with const methods.
  static void Use(CacheHeader* record, uint16_t epoch) {
    std::atomic_ref<uint16_t> uses(record->uses), stamp(record->epoch);
    const uint16_t before =
        Halved(uses.load(std::memory_order_relaxed), stamp.load(std::memory_order_relaxed), epoch);
    // Two threads that count at the same time may count once: the counts are estimates.
    uses.store(before < kMaxUses ? before + 1 : before, std::memory_order_relaxed);
    stamp.store(epoch, std::memory_order_relaxed);
  }

  float* Row(CacheHeader* record) const { return reinterpret_cast<float*>(record + 1); }
  const float* Row(const CacheHeader* record) const { return reinterpret_cast<const float*>(record + 1); }
  // Returns the sum of gradients since the row arrived. Not with kPlain, like the methods below up to Follow.
  float* Since(CacheHeader* record) const { return Row(record) + dim_; }
  // Writes the row as it arrived, moved by the gradients since then.
  void ReadMoved(const CacheHeader* record, float* out) const {
    const float* const row = Row(record);
    const float* const since = row + dim_;
    const float step = record->step;
    for (uint32_t d = 0; d < dim_; ++d) out[d] = row[d] - step * since[d];
  }
  // The version, the occurrences and the sums of the deferred gradients. Require kDefers.
  uint32_t* DeferredVersion(CacheHeader* record) const {
    return reinterpret_cast<uint32_t*>(Row(record) + 2 * size_t{dim_});
  }
  uint32_t* DeferredOccurrences(CacheHeader* record) const { return DeferredVersion(record) + 1; }
  float* DeferredSums(CacheHeader* record) const { return Row(record) + 2 * size_t{dim_} + 2; }

  // Replaces the copy by the server's row, which lacks the deferred gradients, and updates the fit of the
  // step.
  void Replace(CacheHeader* record, const float* row) const;
  // Moves the copy by a gradient of this worker that is sent to the server.
  void Follow(CacheHeader* record, const float* gradient, float learning_rate_factor) const;

  // Fetches into the processor's cache what Insert reads of the index and of the sketch.
  void PrefetchInsert(uint64_t hash) const {
    __builtin_prefetch(Cell(hash), 1, 2);
    const auto [a, b] = SketchCells(hash);
    __builtin_prefetch(sketch_.data() + a, 1, 2);
    __builtin_prefetch(sketch_.data() + b, 1, 2);
  }
  // Adds a record for `id`, which has none, with an unspecified row. Returns nullptr if the id is used too
  // rarely. Appends the deferred gradients of the evicted row to `to_send`.
  CacheHeader* Insert(uint64_t id, uint64_t hash, uint16_t epoch, DeferredGradients* to_send);
  // Removes all rows for which `goes(record)` returns true, and appends their deferred gradients to
  // `to_send`. Returns their number.
  template <typename Predicate>
  uint64_t EraseIf(const Predicate& predicate, DeferredGradients* to_send) {
    uint64_t erased = 0;
    for (uint32_t slot = 0; slot < used_; ++slot) {
      CacheHeader* const record = RecordAt(slot);
      if (record->version == 0 || !predicate(*record)) continue;
      Erase(slot, to_send);
      free_.push_back(slot);
      ++erased;
    }
    return erased;
  }
  // Moves a record's deferred gradients to `to_send`.
  void TakeDeferred(CacheHeader* record, DeferredGradients* to_send);
  // Moves the deferred gradients of all records to `to_send`.
  void TakeAllDeferred(DeferredGradients* to_send);

  uint32_t rows() const { return rows_; }
  uint32_t capacity() const { return capacity_; }
  uint64_t evicted() const { return evicted_; }
  uint64_t refused() const { return refused_; }
  // Returns how much of the byte budget is in use.
  size_t bytes() const;

 private:
  static constexpr uint16_t kMaxUses = 255;  // also the largest count of the sketch

  struct FreeSlab {
    void operator()(char* slab) const { std::free(slab); }
  };

  // Returns the count `uses` of epoch `stamp`, halved once for each epoch since then.
  static uint16_t Halved(uint16_t uses, uint16_t stamp, uint16_t epoch) {
    const uint16_t age = static_cast<uint16_t>(epoch - stamp);
    return age < 16 ? static_cast<uint16_t>(uses >> age) : uint16_t{0};
  }
  CacheHeader* RecordAt(uint32_t slot) const {
    return reinterpret_cast<CacheHeader*>(slab_.get() + size_t{slot} * stride_);
  }
  // Sets the step; `squares` is the sum of squares of Since(record).
  void SetStep(CacheHeader* record, float squares) const;
  // Returns the positions of an id's two counters. The sketch uses other bits than the index: ids that
  // collide there do not collide here.
  std::pair<size_t, size_t> SketchCells(uint64_t hash) const {
    const uint64_t other = Mix64(hash);
    return {other & (sketch_.size() - 1), (other >> 32) & (sketch_.size() - 1)};
  }
  // Counts a use of an id without a copy and returns its uses.
  uint16_t CountInSketch(uint64_t hash, uint16_t epoch);
  // Raises the count of an id to at least `uses`.
  void RaiseInSketch(uint64_t hash, uint16_t uses);
  // Returns the slot of the least used of a few random copies, and prefetches those of the next draw.
  uint32_t DrawVictim(uint16_t epoch);
  // Returns a random slot and advances `state`, the generator's state. The shard is full.
  uint32_t DrawSlot(uint64_t* state) const;
  // Removes the record from the index. The caller reuses the slot.
  void Erase(uint32_t slot, DeferredGradients* to_send);

  uint32_t dim_ = 0;
  bool defers_ = false;
  uint16_t min_uses_ = 1;  // that a row needs to replace another
  size_t stride_ = 0;
  uint32_t capacity_ = 0;
  uint32_t mask_ = 0;
  std::vector<uint64_t> cells_;  // low half of the hash << 32 | slot + 1; 0: empty
  std::unique_ptr<char, FreeSlab> slab_;
  uint32_t used_ = 0;  // slots used so far, including free_
  uint32_t rows_ = 0;
  std::vector<uint32_t> free_;
  std::vector<uint8_t> sketch_;
  uint16_t sketch_epoch_ = 0;
  uint64_t random_ = 0;
  uint64_t evicted_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CACHE_CACHE_SHARD_H_
