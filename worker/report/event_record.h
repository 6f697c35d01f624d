#ifndef TANDEM_WORKER_REPORT_EVENT_RECORD_H_
#define TANDEM_WORKER_REPORT_EVENT_RECORD_H_

// TensorFlow's record format, of which event files are made. A record is, in little-endian order,
//
//   A  uint64  length of C
//   B  uint32  masked CRC-32C of A
//   C  bytes   a serialised Event
//   D  uint32  masked CRC-32C of C

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem::worker {

// Castagnoli's CRC (RFC 3720), as LevelDB masks it: what is stored beside data that holds CRCs should not be
// one.
uint32_t Crc32c(absl::string_view bytes);
uint32_t MaskedCrc32c(absl::string_view bytes);

// A to D.
std::string EventRecord(absl::string_view event);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_REPORT_EVENT_RECORD_H_
