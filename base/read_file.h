#ifndef TANDEM_BASE_READ_FILE_H_
#define TANDEM_BASE_READ_FILE_H_

#include <cstddef>
#include <limits>
#include <string>

#include "absl/status/statusor.h"

namespace tandem {

// All that stands in the file, byte for byte. It is read to its end whatever size it says it has: the files
// of /proc say 0, and a pipe none. Blocks as long as reading does. Errors name the file and the system's
// reason, under that reason's code (NotFound, PermissionDenied, ...; a directory: InvalidArgument).
// OutOfRange: there are more than `max_bytes`, of which no more are read.
absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     size_t max_bytes = std::numeric_limits<size_t>::max());

}  // namespace tandem

#endif  // TANDEM_BASE_READ_FILE_H_
