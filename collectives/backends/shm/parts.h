#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_PARTS_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_PARTS_H_

// What each collective copies or reduces, apart from when: a rank packs what others need of it into its slot
// of shared memory, and unpacks what it needs from theirs. Large ones do it block by block.

#include <cstddef>

#include "absl/types/span.h"
#include "collectives/backends/shm/copy.h"
#include "collectives/operation.h"
#include "collectives/reduce/reduce.h"

namespace tandem::collectives::shm {

// How an operation's bytes lie in the slots. A slot has one lane that all read, or one for each reader;
// block k of a part [0, n) is its bytes [k * chunk, min(n, (k + 1) * chunk)).
struct Plan {
  bool lane_per_reader = false;
  size_t chunk = 0;       // bytes of a lane in one block; a multiple of 64 unless there is one block
  size_t stride = 0;      // from lane to lane
  size_t slot_bytes = 0;  // of all lanes
  size_t blocks = 1;
  WriteHint hint = WriteHint::kCache;  // for what goes to the user's buffers
};

// Bytes of the largest part that some rank packs, so far as this rank can know: for uneven gather, scatter
// and all_to_all, of its own parts. The same on all ranks in all other cases.
size_t LargestPart(const Operation& operation, int world_size);
// Whether each reader has a lane of its own.
bool HasLanePerReader(OpKind kind);
// Results larger than this are written past the caches.
inline constexpr size_t kStreamBytes = 8 << 20;

// For an operation whose parts lie in one slot of at most a few KiB.
Plan InlinePlan(const Operation& operation, size_t largest_part, int world_size);
// In blocks of at most `block_bytes` (a multiple of 64 * world_size).
Plan StagedPlan(const Operation& operation, size_t largest_part, int world_size, size_t block_bytes);

// One rank's place in an operation.
struct PartLocation {
  int rank;
  int world_size;
  absl::Span<const double> factors;  // by rank for kPremulSum, else empty
};

// Writes what the other ranks need of block k into `slot`; through `writer` if there is one.
void Pack(const Operation& operation, const PartLocation& place, const Plan& plan, size_t k, char* slot,
          LaneWriter* writer);
// Reads what this rank needs of block k from the others' slots (slots[s]: of rank s; its own is not read) and
// from its own input.
void Unpack(const Operation& operation, const PartLocation& place, const Plan& plan, size_t k,
            absl::Span<const char* const> slots);

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_PARTS_H_
