// SPDX-License-Identifier: Apache-2.0
#include "ps/wire/occurrence_codec.h"

#include <algorithm>
#include <cstring>

namespace tandem::ps {
namespace {

template <typename T>
void Pack(absl::Span<const uint32_t> occurrences, char* out) {
  for (const uint32_t number : occurrences) {
    const auto narrow = static_cast<T>(number);
    std::memcpy(out, &narrow, sizeof(narrow));
    out += sizeof(narrow);
  }
}

template <typename T>
void Unpack(const char* packed, size_t count, uint32_t* occurrences) {
  for (size_t i = 0; i < count; ++i) {
    T narrow;
    std::memcpy(&narrow, packed + i * sizeof(narrow), sizeof(narrow));
    occurrences[i] = narrow;
  }
}

}  // namespace

uint32_t OccurrenceWidth(absl::Span<const uint32_t> occurrences) {
  uint32_t largest = 1;
  for (const uint32_t number : occurrences) largest = std::max(largest, number);
  if (largest == 1) return 0;
  return largest <= 0xff ? 1 : largest <= 0xffff ? 2 : 4;
}

void PackOccurrences(absl::Span<const uint32_t> occurrences, uint32_t width, char* out) {
  const uint64_t bytes = occurrences.size() * width;
  std::fill(out + bytes, out + PackedOccurrenceBytes(occurrences.size(), width), char{0});
  if (width == 1) return Pack<uint8_t>(occurrences, out);
  if (width == 2) return Pack<uint16_t>(occurrences, out);
  Pack<uint32_t>(occurrences, out);
}

void UnpackOccurrences(const char* packed, size_t count, uint32_t width, uint32_t* occurrences) {
  if (width == 1) return Unpack<uint8_t>(packed, count, occurrences);
  if (width == 2) return Unpack<uint16_t>(packed, count, occurrences);
  Unpack<uint32_t>(packed, count, occurrences);
}

}  // namespace tandem::ps
