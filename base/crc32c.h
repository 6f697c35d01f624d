// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CRC32C_H_
#define TANDEM_BASE_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace tandem {

// Returns the CRC-32C (Castagnoli, RFC 3720) of `bytes`. Processors have instructions for it, with which it
// is several times faster than zlib's CRC-32 (base/checksummed_file.h): the log takes it of every gradient.
uint32_t Crc32c(absl::string_view bytes);

}  // namespace tandem

#endif  // TANDEM_BASE_CRC32C_H_
