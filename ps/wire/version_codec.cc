// SPDX-License-Identifier: Apache-2.0
#include "ps/wire/version_codec.h"

#include <bit>

namespace tandem::ps {
namespace {

// Returns the code of a version, or 0 if there is no copy or its code needs more bits.
uint64_t CodeOf(uint32_t version, const VersionCoding& coding) {
  if (version == 0) return 0;
  const uint64_t code = uint64_t{coding.base - version} + 1;
  return code >> coding.bits == 0 ? code : 0;
}

}  // namespace

VersionCoding ChooseVersionCoding(absl::Span<const uint32_t> versions, size_t row_bytes) {
  VersionCoding best;
  bool any = false;
  for (const uint32_t version : versions) {
    if (version == 0) continue;
    if (!any || static_cast<int32_t>(version - best.base) > 0) best.base = version;
    any = true;
  }
  uint64_t width_counts[34] = {};
  for (const uint32_t version : versions) {
    if (version != 0) ++width_counts[std::bit_width(uint64_t{best.base - version} + 1)];
  }
  // Half of the old rows are assumed to have been updated, so that they would be sent anyway.
  uint64_t too_wide = 0;
  uint64_t least = ~uint64_t{0};
  for (uint32_t bits = 32; bits >= 1; --bits) {
    too_wide += width_counts[bits + 1];
    const uint64_t cost = PackedVersionBytes(versions.size(), bits) + too_wide * row_bytes / 2;
    if (cost <= least) {
      least = cost;
      best.bits = bits;
    }
  }
  return best;
}

uint64_t PackedVersionBytes(uint64_t count, uint32_t bits) {
  // Computed in two parts, so that count * bits does not overflow.
  return count / 8 * bits + (count % 8 * bits + 7) / 8;
}

void PackVersions(absl::Span<const uint32_t> versions, const VersionCoding& coding, char* out) {
  uint64_t pending = 0;
  uint32_t filled = 0;
  for (const uint32_t version : versions) {
    pending |= CodeOf(version, coding) << filled;
    for (filled += coding.bits; filled >= 8; filled -= 8) {
      *out++ = static_cast<char>(pending);
      pending >>= 8;
    }
  }
  if (filled > 0) *out = static_cast<char>(pending);
}

void UnpackVersions(const char* packed, size_t count, const VersionCoding& coding, uint32_t* versions) {
  const uint64_t mask = (uint64_t{1} << coding.bits) - 1;
  uint64_t pending = 0;
  uint32_t filled = 0;
  for (size_t i = 0; i < count; ++i) {
    for (; filled < coding.bits; filled += 8) {
      pending |= uint64_t{static_cast<uint8_t>(*packed++)} << filled;
    }
    const uint32_t code = static_cast<uint32_t>(pending & mask);
    pending >>= coding.bits;
    filled -= coding.bits;
    versions[i] = code == 0 ? 0 : coding.base - (code - 1);
  }
}

}  // namespace tandem::ps
