// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_DIRECTORY_LOCK_H_
#define TANDEM_BASE_DIRECTORY_LOCK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tandem {

// The exclusive use of a directory by one process. The kernel releases it when the process ends for any
// reason, and not before: a process that is merely stopped keeps it.
class DirectoryLock {
 public:
  // Creates `directory` with its parents if it is missing, durably, and locks the file LOCK in it. Waits for
  // another holder for up to `wait_ms`. Unavailable: another process holds the lock; the message names its
  // id.
  static absl::StatusOr<std::unique_ptr<DirectoryLock>> Take(const std::string& directory, int wait_ms);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  explicit DirectoryLock(int descriptor) : descriptor_(descriptor) {}
  const int descriptor_;
};

}  // namespace tandem

#endif  // TANDEM_BASE_DIRECTORY_LOCK_H_
