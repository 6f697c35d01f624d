// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_WIRE_VERSION_CODEC_H_
#define TANDEM_PS_WIRE_VERSION_CODEC_H_

// Packs the versions of cached row copies into few bits (frame of reference). A code is the distance of a
// version to the newest one: code 0 means that there is no copy, code c > 0 means version base - (c - 1),
// modulo 2^32. Code i is in bits [i * bits, (i + 1) * bits) of the array, lowest bit first.

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace tandem::ps {

// The parameters of the code.
struct VersionCoding {
  uint32_t bits = 1;  // bits per code, 1 .. 32
  uint32_t base = 0;  // the newest version
};

// Returns the coding that makes pull request and response together shortest. versions[i] == 0 means that
// there is no copy. The coding may leave out a few copies that are much older than the others. Sending such a
// row again, which costs about `row_bytes` if it was not updated, can be cheaper than more bits for all
// codes.
VersionCoding ChooseVersionCoding(absl::Span<const uint32_t> versions, size_t row_bytes);

// Returns the size of `count` codes in bytes.
uint64_t PackedVersionBytes(uint64_t count, uint32_t bits);

// Writes the codes to `out`, which has PackedVersionBytes(versions.size(), coding.bits) bytes. A version that
// has no code in `coding` is written as 0, no copy.
void PackVersions(absl::Span<const uint32_t> versions, const VersionCoding& coding, char* out);

// Unpacks `count` versions from the PackedVersionBytes(count, coding.bits) bytes at `packed`. Any bytes
// decode to some versions.
void UnpackVersions(const char* packed, size_t count, const VersionCoding& coding, uint32_t* versions);

// Returns the size in bytes of the bitmap in the response to a conditional pull, which has a bit for each of
// `ids` ids: whether the response has its row.
inline uint64_t BitmapBytes(uint64_t ids) { return (ids + 7) / 8; }

}  // namespace tandem::ps

#endif  // TANDEM_PS_WIRE_VERSION_CODEC_H_
