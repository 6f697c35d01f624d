// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_UTF8_H_
#define TANDEM_BASE_UTF8_H_

// Converts arbitrary bytes to valid UTF-8, and to text that a terminal can show. Program output, file names
// and data from peers may be any bytes, but a protobuf `string` may not: the receiver rejects the whole
// message.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// Returns `text` with each byte that is not part of a UTF-8 character (RFC 3629) replaced by U+FFFD. Valid
// text is returned unchanged.
std::string ValidUtf8(absl::string_view text);

// Returns `text` as an error message quotes it: `"text"`, in which control characters and bytes that are not
// UTF-8 are escapes ("\t", "\x1b"). A terminal therefore shows it as one line. A text of more than
// `max_bytes` is cut, between two characters, and ends in `"...`.
std::string Quoted(absl::string_view text, size_t max_bytes = 40);
// Returns the same without the quotation marks and without a limit.
std::string Printable(absl::string_view text);

}  // namespace tandem

#endif  // TANDEM_BASE_UTF8_H_
