// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_IPC_DIRECTORY_BENEATH_H_
#define TANDEM_BASE_IPC_DIRECTORY_BENEATH_H_

// Opens directories that a peer has named, without leaving a directory that this process was given.

#include <string>

#include "absl/status/statusor.h"
#include "base/ipc/descriptor.h"
#include "base/open_beneath.h"

namespace tandem::ipc {

// Opens the directory `path`, which must exist and lie in or below `root`. A relative path starts from the
// process's working directory. The path /proc/self/fd/N of the result's number N names the directory, also if
// somebody replaces a part of `path` afterwards.
//
// Errors name both paths. PermissionDenied: the path, or a symbolic link in it, leads out of the root.
// NotFound: there is no such directory. Otherwise the errors of absl::ErrnoToStatus.
absl::StatusOr<Descriptor> OpenDirectoryBeneath(const std::string& root, const std::string& path,
                                                BeneathMethod method = BeneathMethod::kAuto);

}  // namespace tandem::ipc

#endif  // TANDEM_BASE_IPC_DIRECTORY_BENEATH_H_
