// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <array>
#include <cstddef>
#include <cstring>

#if defined(__SSE4_2__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace tandem {
namespace {

#if defined(__SSE4_2__)
uint32_t Add8(uint32_t crc, uint64_t value) { return static_cast<uint32_t>(_mm_crc32_u64(crc, value)); }
uint32_t Add1(uint32_t crc, unsigned char value) { return _mm_crc32_u8(crc, value); }
#elif defined(__ARM_FEATURE_CRC32)
uint32_t Add8(uint32_t crc, uint64_t value) { return __crc32cd(crc, value); }
uint32_t Add1(uint32_t crc, unsigned char value) { return __crc32cb(crc, value); }
#else
constexpr uint32_t kPolynomial = 0x82f63b78;
constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();
uint32_t Add1(uint32_t crc, unsigned char value) { return (crc >> 8) ^ kTable[(crc ^ value) & 0xff]; }
uint32_t Add8(uint32_t crc, uint64_t value) {
  for (int i = 0; i < 8; ++i) crc = Add1(crc, static_cast<unsigned char>(value >> (8 * i)));
  return crc;
}
#endif

}  // namespace

uint32_t Crc32c(absl::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  const char* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= sizeof(uint64_t); left -= sizeof(uint64_t), at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, at, sizeof(word));
    crc = Add8(crc, word);
  }
  for (; left > 0; --left, ++at) crc = Add1(crc, static_cast<unsigned char>(*at));
  return ~crc;
}

}  // namespace tandem
