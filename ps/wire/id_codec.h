#ifndef TANDEM_PS_WIRE_ID_CODEC_H_
#define TANDEM_PS_WIRE_ID_CODEC_H_

// 64-bit ids in fewer bits, their order kept. Frame of reference and deltas, bit-packed (Zukowski et al.,
// ICDE 2006; Lemire and Boytsov, 2015), block by block; the choice between the two is each block's own.
//
// Blocks hold 128 ids, the last one what remains; nothing stands between them. A block of n ids is
//
//   u8 head         bits 0-6: width w, 0 .. 56 or 64; bit 7: deltas
//   u64 base        little-endian
//   bits[n * w]     little-endian, value i in bits [i * w, (i + 1) * w), filled up with zeros to a whole byte
//
// Without deltas id i = base + value i; base is the block's least id. With deltas id i = the id before it in
// the block + value i, and for the first base + value 0; base is the first id, its value 0. Sums wrap around,
// so that any bytes are some ids.
//
// It pays for ids that lie close together: consecutive, sorted, or in a range well below 2^64 (20 million
// rows: 25 bits). Hashed ids have 64 random bits: they are 8% longer packed than raw, which IdPacker says
// before anything is written.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::ps {

// Packs ids in two steps, so that the caller can choose by size and find room. Reused from call to call: a
// steady state allocates nothing. Not thread-safe.
class IdPacker {
 public:
  // Looks at the ids and returns how many bytes Write will write for them.
  size_t Plan(absl::Span<const uint64_t> ids);
  // Writes the packed form of the ids of the last Plan, which must be unchanged.
  void Write(absl::Span<const uint64_t> ids, char* out) const;

 private:
  struct Block {
    uint64_t base;
    uint8_t head;
  };
  std::vector<Block> blocks_;
};

// Whether `count` ids should cross a socket packed, given what IdPacker::Plan says.
bool PackingPays(size_t packed_bytes, size_t count);

// The least and the greatest number of bytes that `count` ids may be packed in (`count` < 2^56).
uint64_t MinPackedBytes(uint64_t count);
uint64_t MaxPackedBytes(uint64_t count);

// Writes exactly `count` ids that `packed` holds. InvalidArgument, saying what was expected, when it does not
// hold exactly so many or is malformed; `out` is then unspecified. Never reads outside `packed` nor writes
// outside out[0, count), whatever the bytes.
absl::Status UnpackIds(absl::string_view packed, uint64_t count, uint64_t* out);

}  // namespace tandem::ps

#endif  // TANDEM_PS_WIRE_ID_CODEC_H_
