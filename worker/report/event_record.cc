// SPDX-License-Identifier: Apache-2.0
#include "worker/report/event_record.h"

#include <array>

namespace tandem::worker {
namespace {

// Table of one CRC per byte value. A few hundred bytes per second need nothing faster.
constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

template <typename Word>
std::string LittleEndian(Word word) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(word); ++i) bytes += static_cast<char>(word >> (8 * i) & 0xff);
  return bytes;
}

}  // namespace

uint32_t Crc32c(absl::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

uint32_t MaskedCrc32c(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string EventRecord(absl::string_view event) {
  const std::string length = LittleEndian(static_cast<uint64_t>(event.size()));
  std::string record = length + LittleEndian(MaskedCrc32c(length));
  record.append(event.data(), event.size());
  return record + LittleEndian(MaskedCrc32c(event));
}

}  // namespace tandem::worker
