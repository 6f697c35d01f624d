#ifndef TANDEM_PS_WIRE_VERSION_CODEC_H_
#define TANDEM_PS_WIRE_VERSION_CODEC_H_

// Versions of row copies in few bits: how far each lies before the newest of them (frame of reference). Code
// 0 means that there is no copy, code c > 0 that its version is base - (c - 1), all modulo 2^32. Code i lies
// in the bits [i * bits, (i + 1) * bits) of the array, the lowest first.

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace tandem::ps {

struct VersionCoding {
  uint32_t bits = 1;  // of a code, 1 .. 32
  uint32_t base = 0;
};

// The coding that makes the message shortest. versions[i] == 0: no copy. A few copies that are much older
// than the others may be given up: to send such a row again, which costs about `row_bytes` if it was not
// updated, can be cheaper than to give all codes more bits.
VersionCoding ChooseVersionCoding(absl::Span<const uint32_t> versions, size_t row_bytes);

// Bytes of `count` codes.
uint64_t PackedVersionBytes(uint64_t count, uint32_t bits);

// Writes the codes; versions that have none in `coding` become 0.
void PackVersions(absl::Span<const uint32_t> versions, const VersionCoding& coding, char* out);

// The inverse. `packed` has PackedVersionBytes(count, bits) bytes; any bytes are some versions.
void UnpackVersions(const char* packed, size_t count, const VersionCoding& coding, uint32_t* versions);

}  // namespace tandem::ps

#endif  // TANDEM_PS_WIRE_VERSION_CODEC_H_
