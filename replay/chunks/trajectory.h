// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CHUNKS_TRAJECTORY_H_
#define TANDEM_REPLAY_CHUNKS_TRAJECTORY_H_

// The content of an item: for each of its columns, slices of chunks.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "replay/chunks/chunk.h"
#include "replay/chunks/signature.h"

namespace tandem::replay {

// Says which column of a writer's steps each column of an item comes from. Several columns of an item may
// come from one column of the steps: "observation" and "next_observation". Immutable, shared by many items.
struct ItemLayout {
  std::shared_ptr<const Signature> steps;  // the columns of the chunks
  std::vector<size_t> sources;             // of each column of the items: its column in `steps`
  std::shared_ptr<const Signature> items;  // the columns of the items: their names, and their sources' types

  // Makes a layout of columns `names`, with column i from column `sources`[i] of `steps`. InvalidArgument: as
  // of Signature::Make, or a source that does not exist.
  static absl::StatusOr<std::shared_ptr<const ItemLayout>> Make(std::shared_ptr<const Signature> steps,
                                                                const std::vector<std::string>& names,
                                                                std::vector<size_t> sources);
};

// `length` consecutive steps of a chunk, from step `offset`.
struct ChunkSlice {
  uint32_t chunk = 0;  // the chunk's index in Trajectory::chunks
  uint32_t offset = 0;
  uint32_t length = 0;
};

// The content of one item. Built once, then immutable and shared.
struct Trajectory {
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 30;

  std::shared_ptr<const ItemLayout> layout;
  absl::InlinedVector<std::shared_ptr<const Chunk>, 2> chunks;  // distinct
  // The slices of the first column, then those of the second, and so on. Slices of one column follow each
  // other in the item; they may repeat steps.
  absl::InlinedVector<ChunkSlice, 4> slices;
  absl::InlinedVector<uint32_t, 4> slices_end;  // of each column: the index behind its last slice
  // The smallest and largest policy version of the item's steps.
  int64_t min_version = 0, max_version = 0;

  size_t slices_begin(size_t c) const { return c == 0 ? 0 : slices_end[c - 1]; }
  // Returns the number of steps of column `c`.
  uint64_t steps(size_t c) const;
  // Returns the bytes of the values of all columns.
  uint64_t bytes() const;
  // Copies the values of column `c` to `out`, which has room for steps(c) values. Returns the end of the
  // copy.
  char* Copy(size_t c, char* out) const;
  // Appends the values of column `c` to `out`, as slices that share the memory of the chunks.
  void Share(size_t c, Bytes* out) const;

  // Returns InvalidArgument, which names the column, if the item is not well formed: a number of columns
  // other than the layout's, a column without steps, slices outside a chunk, chunks of other columns,
  // versions in the wrong order, or values of more than kMaxBytes.
  absl::Status Check() const;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CHUNKS_TRAJECTORY_H_
