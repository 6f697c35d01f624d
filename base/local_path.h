// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_LOCAL_PATH_H_
#define TANDEM_BASE_LOCAL_PATH_H_

// Refuses addresses where a path of the file system is expected.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace CLI {
class Option;
}

namespace tandem {

// Returns InvalidArgument if `path` begins with the scheme of a URL, such as "s3://" or "file://". A program
// that took it for a path would write into a local directory of the name "s3:". The message names the scheme
// and says what to do; it follows what the path is for. An empty path is OK.
absl::Status CheckLocalPath(absl::string_view path);
// Makes the parser refuse values of `option` that CheckLocalPath refuses. Returns `option`.
CLI::Option* LocalPath(CLI::Option* option);

}  // namespace tandem

#endif  // TANDEM_BASE_LOCAL_PATH_H_
