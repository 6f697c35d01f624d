// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_REPORT_EVENT_RECORD_H_
#define TANDEM_WORKER_REPORT_EVENT_RECORD_H_

// Encodes TensorFlow's record format, of which event files consist. A record has these fields, in
// little-endian order:
//
//   A  u64   size of C in bytes
//   B  u32   masked CRC-32C of A
//   C        the event, protobuf
//   D  u32   masked CRC-32C of C

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem::worker {

// Returns the CRC-32C of `bytes` (base/crc32c.h), masked as in LevelDB. CRCs are masked where they are
// stored, because the CRC of data that contains CRCs is a weak check.
uint32_t MaskedCrc32c(absl::string_view bytes);

// Returns the record (fields A to D) of a serialized Event.
std::string EventRecord(absl::string_view event);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_REPORT_EVENT_RECORD_H_
