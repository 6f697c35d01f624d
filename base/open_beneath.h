// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_OPEN_BENEATH_H_
#define TANDEM_BASE_OPEN_BENEATH_H_

// Opens files that a peer or another file has named, without leaving a directory that this process was given.

#include <string>

#include "absl/status/statusor.h"

namespace tandem {

// The way to resolve a path. Tests choose; the program uses kAuto.
enum class BeneathMethod {
  kAuto,        // kOpenat2, or kComponents where a kernel or a sandbox does not have that call
  kOpenat2,     // symbolic links are followed if they stay below the root
  kComponents,  // one openat for each component; symbolic links are refused
};

// Opens the relative path `below`, which begins at the directory `root`, with `flags` of open(2). Returns a
// file descriptor, which the caller closes, or -1 and sets errno: EXDEV or ELOOP if the path, or a symbolic
// link in it, leads out of the directory.
int OpenBeneath(int root, const std::string& below, int flags, BeneathMethod method = BeneathMethod::kAuto);

// Opens the file `name`, a relative path, in or below `directory` for reading. Returns a file descriptor,
// which the caller closes. Does not wait for the writer of a pipe.
//
// Errors name the file. PermissionDenied: `name`, or a symbolic link in it, leads out of `directory`.
// NotFound: there is no such file. Otherwise the errors of absl::ErrnoToStatus.
absl::StatusOr<int> OpenFileBeneath(const std::string& directory, const std::string& name,
                                    BeneathMethod method = BeneathMethod::kAuto);

}  // namespace tandem

#endif  // TANDEM_BASE_OPEN_BENEATH_H_
