// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_PARTS_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_PARTS_H_

// Copies and reductions of each collective, independent of their timing: a rank packs what others need of it
// into its slot of shared memory, and unpacks what it needs from the others' slots. Large operations do it
// block by block.

#include <cstddef>

#include "absl/types/span.h"
#include "collectives/backends/shm/copy.h"
#include "collectives/operation.h"
#include "collectives/reduce/reduce.h"

namespace tandem::collectives::shm {

// The layout of an operation's bytes in the slots. A slot has one lane that all ranks read, or one lane for
// each reader. Block k of a part [0, n) is its bytes [k * chunk, min(n, (k + 1) * chunk)).
struct Plan {
  bool lane_per_reader = false;
  size_t chunk = 0;       // bytes of a lane in one block; a multiple of 64 unless there is one block
  size_t stride = 0;      // from lane to lane
  size_t slot_bytes = 0;  // of all lanes
  size_t blocks = 1;
  WriteHint hint = WriteHint::kCache;  // for data written to the user's buffers
};

// Returns the bytes of the largest part that a rank packs, as far as this rank can know it. For uneven
// gather, scatter and all_to_all this covers only its own parts. In all other cases the result is the same on
// all ranks.
size_t LargestPart(const Operation& operation, int world_size);
// Returns true if each reader has a lane of its own.
bool HasLanePerReader(OpKind kind);
// Results larger than this are written past the caches.
inline constexpr size_t kStreamBytes = 8 << 20;

// Returns the plan of an operation whose parts lie in one slot of at most a few KiB.
Plan InlinePlan(const Operation& operation, size_t largest_part, int world_size);
// Returns the plan of an operation in blocks of at most `block_bytes` (a multiple of 64 * world_size).
Plan StagedPlan(const Operation& operation, size_t largest_part, int world_size, size_t block_bytes);

// One rank's position in an operation.
struct PartLocation {
  int rank;
  int world_size;
  absl::Span<const double> factors;  // by rank for kPremulSum, else empty
};

// Writes the data of block k that the other ranks need into `slot`; through `writer` unless it is nullptr.
void Pack(const Operation& operation, const PartLocation& place, const Plan& plan, size_t k, char* slot,
          LaneWriter* writer);
// Reads the data of block k that this rank needs from the others' slots and from its own input. slots[s] is
// the slot of rank s; the rank's own slot is not read.
void Unpack(const Operation& operation, const PartLocation& place, const Plan& plan, size_t k,
            absl::Span<const char* const> slots);

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_PARTS_H_
