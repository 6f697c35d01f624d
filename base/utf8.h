#ifndef TANDEM_BASE_UTF8_H_
#define TANDEM_BASE_UTF8_H_

// What programs print, file names and what peers say may be any bytes; a protobuf `string` may not: who reads
// a message that holds others refuses all of it.

#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// `text` with each byte that is part of no UTF-8 character (RFC 3629) replaced by U+FFFD. Text that is valid
// stays as it is.
std::string ValidUtf8(absl::string_view text);

}  // namespace tandem

#endif  // TANDEM_BASE_UTF8_H_
