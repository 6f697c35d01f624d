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

constexpr uint32_t kPolynomial = 0x82f63b78;  // its bits reversed

#if defined(__SSE4_2__)
uint32_t Add8(uint32_t crc, uint64_t value) { return static_cast<uint32_t>(_mm_crc32_u64(crc, value)); }
uint32_t Add1(uint32_t crc, unsigned char value) { return _mm_crc32_u8(crc, value); }
#elif defined(__ARM_FEATURE_CRC32)
uint32_t Add8(uint32_t crc, uint64_t value) { return __crc32cd(crc, value); }
uint32_t Add1(uint32_t crc, unsigned char value) { return __crc32cb(crc, value); }
#else
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

// One instruction needs its predecessor's result, and takes three cycles though one can begin in each. So
// long inputs are read in three parts of kPart bytes at a time, whose checksums are then put together (M.
// Adler's crc32c; V. Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction", Intel
// 2011).
constexpr size_t kPart = 1024;

// A linear map of checksums: column i is the image of bit i.
using Map = std::array<uint32_t, 32>;

constexpr uint32_t Apply(const Map& map, uint32_t crc) {
  uint32_t image = 0;
  for (size_t i = 0; crc != 0; ++i, crc >>= 1) image ^= (crc & 1) != 0 ? map[i] : 0;
  return image;
}

// Returns what `kPart` zero bytes do to a checksum, by repeated squaring of what one zero bit does.
constexpr Map MakeZeros() {
  Map map{kPolynomial};
  for (size_t i = 1; i < map.size(); ++i) map[i] = uint32_t{1} << (i - 1);
  for (size_t bits = 1; bits < kPart * 8; bits *= 2) {
    Map square{};
    for (size_t i = 0; i < map.size(); ++i) square[i] = Apply(map, map[i]);
    map = square;
  }
  return map;
}

// Maps a checksum as MakeZeros does, a byte at a time: the images of its four bytes are added.
using ByteMaps = std::array<std::array<uint32_t, 256>, 4>;
constexpr ByteMaps MakeByteMaps() {
  const Map zeros = MakeZeros();
  ByteMaps maps{};
  for (size_t k = 0; k < maps.size(); ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) maps[k][byte] = Apply(zeros, byte << (8 * k));
  }
  return maps;
}
constexpr ByteMaps kZeros = MakeByteMaps();

uint32_t AddZeros(uint32_t crc) {
  return kZeros[0][crc & 0xff] ^ kZeros[1][(crc >> 8) & 0xff] ^ kZeros[2][(crc >> 16) & 0xff] ^
         kZeros[3][crc >> 24];
}

uint64_t WordAt(const char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

}  // namespace

uint32_t Crc32c(absl::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  const char* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 3 * kPart; left -= 3 * kPart, at += 3 * kPart) {
    uint32_t second = 0, third = 0;
    for (size_t i = 0; i < kPart; i += sizeof(uint64_t)) {
      crc = Add8(crc, WordAt(at + i));
      second = Add8(second, WordAt(at + kPart + i));
      third = Add8(third, WordAt(at + 2 * kPart + i));
    }
    crc = AddZeros(AddZeros(crc) ^ second) ^ third;
  }
  for (; left >= sizeof(uint64_t); left -= sizeof(uint64_t), at += sizeof(uint64_t))
    crc = Add8(crc, WordAt(at));
  for (; left > 0; --left, ++at) crc = Add1(crc, static_cast<unsigned char>(*at));
  return ~crc;
}

}  // namespace tandem
