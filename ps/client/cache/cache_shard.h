#ifndef TANDEM_PS_CLIENT_CACHE_CACHE_SHARD_H_
#define TANDEM_PS_CLIENT_CACHE_CACHE_SHARD_H_

// A sixteenth of a table's cached rows: an open-addressing index over records in one slab.
//
// A record is [header | row: dim floats | gradients since the row came: dim floats | with held gradients:
// version, sums: dim floats]. The slab has room for as many as the byte budget allows and is taken from the
// system as it fills; no row is allocated by itself.
//
// Which rows stay. Each copy counts its uses and a small count-min sketch those of ids without a copy; both
// are halved as time goes by. A new row takes the place of the least used of a few copies drawn by chance, if
// it was itself used more often (TinyLFU: Einziger, Friedman and Manes, ACM Transactions on Storage 2017;
// drawn victims as in Redis).

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

namespace tandem::ps {

inline constexpr uint32_t kCacheShards = 16;

// The shard of an id, by its hash (base/random.h: Mix64). Buckets (ps/partition) and the index take other
// bits.
inline uint32_t CacheShardOf(uint64_t hash) { return static_cast<uint32_t>(hash >> 60); }

struct CacheHeader {
  uint64_t id;
  uint32_t version;  // low half of the table's version that the row holds all updates of; never 0
  uint32_t held;     // gradients in the sums
  uint16_t uses;     // halved for every epoch after `epoch`
  uint16_t epoch;
  uint16_t served;   // pulls since the row came
  uint16_t arrived;  // how often it has come, at most 65535
  // The least-squares fit of the row's changes to the sums of gradients, between the copies that have come.
  float along;   // of products of change and gradients
  float across;  // of gradients' squares
  float moved;   // how far the row went from one copy to the next
  float step;    // by how much the gradients since the row came have moved it, for a sum of 1
};

// Gradients that have left: of evicted rows, of rows that reached their bound, of all rows at a flush.
struct DeferredGradients {
  std::vector<uint64_t> ids;
  std::vector<uint32_t>
      versions;             // low half of the oldest version that the id's gradients were computed from
  std::vector<float> sums;  // [ids x dim]
  void Append(const DeferredGradients& other);
  void Clear();
};

// Not thread-safe: its lock guards it. Methods that are const may run at the same time.
class CacheShard {
 public:
  // How many rows fit in so many bytes; 0: none.
  static uint32_t CapacityOf(size_t bytes, uint32_t dim, bool holds);

  // Not allocated until Init; `holds`: records have room for held gradients.
  void Init(size_t bytes, uint32_t dim, bool holds);

  // Where the search for an id begins: to prefetch.
  const uint64_t* Cell(uint64_t hash) const { return cells_.data() + (static_cast<uint32_t>(hash) & mask_); }
  // The record of `id`, or nullptr.
  CacheHeader* Find(uint64_t id, uint64_t hash) const {
    const uint32_t tag = static_cast<uint32_t>(hash);
    for (uint32_t at = tag & mask_; cells_[at] != 0; at = (at + 1) & mask_) {
      if (static_cast<uint32_t>(cells_[at] >> 32) != tag) continue;
      CacheHeader* const record = RecordAt(static_cast<uint32_t>(cells_[at]) - 1);
      if (record->id == id) return record;
    }
    return nullptr;
  }
  // The likely record of an id, to prefetch: the first with its hash; or nullptr.
  const CacheHeader* Guess(uint64_t hash) const {
    const uint32_t tag = static_cast<uint32_t>(hash);
    for (uint32_t at = tag & mask_; cells_[at] != 0; at = (at + 1) & mask_) {
      if (static_cast<uint32_t>(cells_[at] >> 32) == tag)
        return RecordAt(static_cast<uint32_t>(cells_[at]) - 1);
    }
    return nullptr;
  }
  // Counts a use. Also beside other const methods.
  static void Use(CacheHeader* record, uint16_t epoch) {
    std::atomic_ref<uint16_t> uses(record->uses), stamp(record->epoch);
    const uint16_t before =
        Halved(uses.load(std::memory_order_relaxed), stamp.load(std::memory_order_relaxed), epoch);
    // Two that count at once may count one: these are estimates.
    uses.store(before < kMostUses ? before + 1 : before, std::memory_order_relaxed);
    stamp.store(epoch, std::memory_order_relaxed);
  }

  float* Row(CacheHeader* record) const { return reinterpret_cast<float*>(record + 1); }
  const float* Row(const CacheHeader* record) const { return reinterpret_cast<const float*>(record + 1); }
  // The sum of gradients since the row came.
  float* Since(CacheHeader* record) const { return Row(record) + dim_; }
  // The row as it came, moved by the gradients since.
  void ReadMoved(const CacheHeader* record, float* out) const {
    const float* const row = Row(record);
    const float* const since = row + dim_;
    const float step = record->step;
    for (uint32_t d = 0; d < dim_; ++d) out[d] = row[d] - step * since[d];
  }
  // With `holds` only.
  uint32_t* HeldVersion(CacheHeader* record) const {
    return reinterpret_cast<uint32_t*>(Row(record) + 2 * size_t{dim_});
  }
  float* HeldSums(CacheHeader* record) const { return Row(record) + 2 * size_t{dim_} + 1; }

  // The row as it is at its server, which lacks the held gradients: takes the copy's place, and tells how
  // gradients move it.
  void Replace(CacheHeader* record, const float* row) const;
  // A gradient of this worker, on its way to the server.
  void Follow(CacheHeader* record, const float* gradient, float learning_rate_factor) const;

  // A record for `id`, which has none, its row unspecified; nullptr when the id is not worth it. The
  // gradients of the row that goes for it are added to `left`.
  CacheHeader* Insert(uint64_t id, uint64_t hash, uint16_t epoch, DeferredGradients* left);
  // Removes all rows for which `goes(record)`; their gradients are added to `left`. Returns how many.
  template <typename Goes>
  uint64_t EraseIf(const Goes& goes, DeferredGradients* left) {
    uint64_t erased = 0;
    for (uint32_t slot = 0; slot < used_; ++slot) {
      CacheHeader* const record = RecordAt(slot);
      if (record->version == 0 || !goes(*record)) continue;
      Erase(slot, left);
      free_.push_back(slot);
      ++erased;
    }
    return erased;
  }
  // Moves a record's gradients to `left`.
  void TakeHeld(CacheHeader* record, DeferredGradients* left);
  // Those of all records.
  void TakeAllHeld(DeferredGradients* left);

  uint32_t rows() const { return rows_; }
  uint32_t capacity() const { return capacity_; }
  uint64_t evicted() const { return evicted_; }
  uint64_t refused() const { return refused_; }
  // Of the budget, in use.
  size_t bytes() const;

 private:
  static constexpr uint16_t kMostUses = 255;  // as the sketch's

  struct FreeSlab {
    void operator()(char* slab) const { std::free(slab); }
  };

  static uint16_t Halved(uint16_t uses, uint16_t stamp, uint16_t epoch) {
    const uint16_t age = static_cast<uint16_t>(epoch - stamp);
    return age < 16 ? static_cast<uint16_t>(uses >> age) : uint16_t{0};
  }
  CacheHeader* RecordAt(uint32_t slot) const {
    return reinterpret_cast<CacheHeader*>(slab_.get() + size_t{slot} * stride_);
  }
  // Of `since` squared.
  void SetStep(CacheHeader* record, float squares) const;
  // The id's uses while it had no copy, this one counted.
  uint16_t CountInSketch(uint64_t hash, uint16_t epoch);
  void RaiseInSketch(uint64_t hash, uint16_t uses);
  // The least used of a few.
  uint32_t DrawVictim(uint16_t epoch);
  // Leaves the slot to the caller.
  void Erase(uint32_t slot, DeferredGradients* left);

  uint32_t dim_ = 0;
  bool holds_ = false;
  size_t stride_ = 0;
  uint32_t capacity_ = 0;
  uint32_t mask_ = 0;
  std::vector<uint64_t> cells_;  // hash's low half << 32 | slot + 1; 0: empty
  std::unique_ptr<char, FreeSlab> slab_;
  uint32_t used_ = 0;  // slots ever given out
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
