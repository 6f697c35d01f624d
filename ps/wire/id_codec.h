// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_WIRE_ID_CODEC_H_
#define TANDEM_PS_WIRE_ID_CODEC_H_

// Packs 64-bit ids into fewer bits and keeps their order. The codec is frame of reference or delta coding
// with bit-packing (Zukowski et al., ICDE 2006; Lemire and Boytsov, 2015). Each block of ids chooses between
// the two.
//
// A block has 128 ids, the last one the rest. Blocks lie back to back. A block of n ids consists of
//
//   u8 head         bits 0-6: width w, 0 .. 56 or 64; bit 7: deltas
//   u64 base        little-endian
//   bits[n * w]     little-endian; value i is in bits [i * w, (i + 1) * w); padded with zeros to a whole byte
//
// Without deltas, id i = base + value i, and base is the block's smallest id. With deltas, id 0 = base +
// value 0 and id i = id i-1 + value i; base is the first id and value 0 is 0. Sums wrap around, so that any
// bytes decode to some ids.
//
// Packing pays for ids that are close together: consecutive, sorted, or in a range far below 2^64 (20 million
// rows need 25 bits). Hashed ids have 64 random bits and are 8% longer packed than raw. IdPacker::Plan
// returns the size before anything is written.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::ps {

// Packs ids in two steps, so that the caller can decide by size and allocate memory between them. An object
// is reused from call to call, so that a steady state allocates nothing. Not thread-safe.
class IdPacker {
 public:
  // Returns the number of bytes that Write will write for `ids`.
  size_t Plan(absl::Span<const uint64_t> ids);
  // Writes the packed form of `ids` to `out`. Requires the same ids as the last call of Plan, whose result is
  // the size of `out`.
  void Write(absl::Span<const uint64_t> ids, char* out) const;

 private:
  struct Block {
    uint64_t base;
    uint8_t head;
  };
  std::vector<Block> blocks_;
};

// Returns true if `count` ids should be packed before they are sent over a socket. `packed_bytes` is the
// result of IdPacker::Plan.
bool PackingPays(size_t packed_bytes, size_t count);

// Return the smallest and the largest packed size of `count` ids, in bytes. Require count < 2^56.
uint64_t MinPackedBytes(uint64_t count);
uint64_t MaxPackedBytes(uint64_t count);

// Unpacks exactly `count` ids to out[0, count). InvalidArgument, saying what was expected: `packed` is
// malformed or has another number of ids; `out` is then unspecified. Whatever the bytes are, the function
// reads only `packed` and writes only out[0, count).
absl::Status UnpackIds(absl::string_view packed, uint64_t count, uint64_t* out);

}  // namespace tandem::ps

#endif  // TANDEM_PS_WIRE_ID_CODEC_H_
