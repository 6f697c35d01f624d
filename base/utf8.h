// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_UTF8_H_
#define TANDEM_BASE_UTF8_H_

// Converts arbitrary bytes to valid UTF-8. Program output, file names and data from peers may be any bytes,
// but a protobuf `string` may not: the receiver rejects the whole message.

#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// Returns `text` with each byte that is not part of a UTF-8 character (RFC 3629) replaced by U+FFFD. Valid
// text is returned unchanged.
std::string ValidUtf8(absl::string_view text);

}  // namespace tandem

#endif  // TANDEM_BASE_UTF8_H_
