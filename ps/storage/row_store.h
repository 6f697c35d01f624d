#ifndef TANDEM_PS_STORAGE_ROW_STORE_H_
#define TANDEM_PS_STORAGE_ROW_STORE_H_

// The rows of one bucket and the index that finds them.
//
// A row:    [ id: u64 | stamp: u32 | reserved: u32 | embedding: dim floats | optimizer state | padding to 8
// bytes ] The index: open addressing with linear probing, cells of [ tag: u32 | slot + 1: u32 ], 0 = empty,
// at most 3/4 full.
//
// The tag is the low half of the id's hash (the bucket came from the high half). A cell's place is the tag's
// low bits, so the index grows by reading itself, without touching a row; a cell is 8 bytes, so that one
// cache line holds most probes; and the id itself lies in the row, beside the embedding that is wanted next
// anyway. A tag that matches by accident costs one wasted look at a row.
//
// Rows lie in slabs from the table's arena, cut into chunks of 2^k rows (about 16 KiB); slot s is row s mod
// 2^k of chunk s / 2^k. Rows never move once their bucket is past its first chunk. A bucket grows by an
// eighth, at most 1 MiB, at a time; its first chunk is filled by doubling, so that a bucket of a few rows is
// small.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/random.h"
#include "ps/storage/arena.h"

namespace tandem::ps {

inline uint32_t TagOf(uint64_t id) { return static_cast<uint32_t>(Mix64(id)); }

// The layout that all rows of a table share.
struct RowLayout {
  RowLayout(size_t dim, size_t state_floats);

  size_t dim;
  size_t state_floats;
  size_t stride;         // bytes from row to row
  uint32_t chunk_shift;  // 2^chunk_shift rows a chunk
  size_t row_floats() const { return dim + state_floats; }
  size_t chunk_rows() const { return size_t{1} << chunk_shift; }
};

struct Row {
  uint64_t id;
  // When the row was last updated, in updates of its bucket (see RowStore::BeginUpdates); 0 = never.
  uint32_t stamp;
  uint32_t reserved;  // the place of an access count, for admission and eviction

  float* floats() { return reinterpret_cast<float*>(this + 1); }
  const float* floats() const { return reinterpret_cast<const float*>(this + 1); }
};
static_assert(sizeof(Row) == 16);

// Not thread-safe: its bucket's lock guards it; const methods may run at the same time. `layout` and `arena`
// must outlive it.
class RowStore {
 public:
  RowStore(const RowLayout* layout, Arena* arena) : layout_(layout), arena_(arena) {}

  // Lookup in three steps, so that a caller can take many ids through each and the memory works on all of
  // them at once: PrefetchCell, then Candidate (reads the index and returns the row that is most likely the
  // id's, without reading it; nullptr: the id has no row), then Confirm (reads the row's id; searches on when
  // it is another's).
  void PrefetchCell(uint32_t tag) const {
    if (cell_mask_ != 0) __builtin_prefetch(&cells()[tag & cell_mask_]);
  }
  Row* Candidate(uint32_t tag) const {
    if (cell_mask_ == 0) return nullptr;
    for (uint32_t at = tag & cell_mask_;; at = (at + 1) & cell_mask_) {
      const Cell cell = cells()[at];
      if (cell.slot_plus_1 == 0) return nullptr;
      if (cell.tag == tag) return RowAt(cell.slot_plus_1 - 1);
    }
  }
  Row* Confirm(Row* candidate, uint64_t id, uint32_t tag) const {
    return candidate == nullptr || candidate->id == id ? candidate : Find(id, tag);
  }
  // All three steps.
  Row* Find(uint64_t id, uint32_t tag) const;

  // Adds a row for `id`, which has none. Its floats are unspecified, its stamp 0. May move the bucket's rows.
  Row* Insert(uint64_t id, uint32_t tag);

  // Reserves `count` consecutive stamps above those of all rows and returns the first. A row stamped first +
  // i was updated by entry i. Stamps are 32 bits: when they run out, every row's falls back to 0.
  uint32_t BeginUpdates(uint32_t count);

  // Rows in order of slot, that is of insertion.
  void ForEach(absl::FunctionRef<void(const Row& row)> visit) const;
  void Clear();

  uint32_t size() const { return size_; }
  // The index and the first, small chunk; slabs are counted by the arena.
  size_t own_bytes() const;

 private:
  struct Cell {
    uint32_t tag;
    uint32_t slot_plus_1;
  };

  Cell* cells() const { return reinterpret_cast<Cell*>(index_.data()); }
  Row* RowAt(uint32_t slot) const {
    char* chunk = chunks_[slot >> layout_->chunk_shift];
    return reinterpret_cast<Row*>(chunk + (slot & (layout_->chunk_rows() - 1)) * layout_->stride);
  }
  void GrowIndex();
  void GrowRows();

  const RowLayout* const layout_;
  Arena* const arena_;
  AlignedMemory index_;
  uint32_t cell_mask_ = 0;  // cells - 1; 0 = no index yet
  uint32_t size_ = 0;
  uint32_t capacity_ = 0;  // rows there is room for
  uint32_t next_stamp_ = 1;
  std::vector<char*> chunks_;
  AlignedMemory first_chunk_;
  std::vector<Arena::Slab> slabs_;  // hold the chunks after the first
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROW_STORE_H_
