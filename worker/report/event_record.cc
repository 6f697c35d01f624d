// SPDX-License-Identifier: Apache-2.0
#include "worker/report/event_record.h"

#include "base/crc32c.h"

namespace tandem::worker {
namespace {

template <typename Word>
std::string LittleEndian(Word word) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(word); ++i) bytes += static_cast<char>(word >> (8 * i) & 0xff);
  return bytes;
}

}  // namespace

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
