// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_READ_FILE_H_
#define TANDEM_BASE_READ_FILE_H_

#include <cstddef>
#include <limits>
#include <string>

#include "absl/status/statusor.h"

namespace tandem {

// Returns the contents of the file, byte for byte. It is read to its end, independent of the size that the
// system reports: the files of /proc report 0, and a pipe has none. Blocks as long as reading does. Errors
// name the file and the system's reason, and have the matching code (NotFound, PermissionDenied, ...;
// InvalidArgument for a directory). OutOfRange if the file has more than `max_bytes`; reading then stops
// within 64 KiB.
absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     size_t max_bytes = std::numeric_limits<size_t>::max());

}  // namespace tandem

#endif  // TANDEM_BASE_READ_FILE_H_
