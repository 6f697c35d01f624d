// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_LOG_CRC32C_H_
#define TANDEM_PS_LOG_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace tandem::ps {

// Returns the CRC-32C (Castagnoli) of `bytes`. Processors compute it several times faster than zlib's CRC-32,
// and the log takes it of every gradient.
uint32_t Crc32c(absl::string_view bytes);

}  // namespace tandem::ps

#endif  // TANDEM_PS_LOG_CRC32C_H_
