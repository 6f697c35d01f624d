// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_SPILL_SPILL_DIRECTORY_H_
#define TANDEM_PS_STORAGE_SPILL_SPILL_DIRECTORY_H_

// SpillDirectory is a directory that one server uses exclusively while it runs.

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tandem::ps {

// The directory is claimed by a lock on its file "tandem.lock". The kernel releases the lock when the process
// ends, for whatever reason.
class SpillDirectory {
 public:
  // Creates the directory if necessary, locks it and removes the subdirectory "rows", which a killed server
  // may have left. Does not touch other files. Does not wait for the lock: AlreadyExists names the process
  // that holds it. Other errors, such as Unavailable or PermissionDenied, say why the directory cannot be
  // created or written.
  static absl::StatusOr<std::unique_ptr<SpillDirectory>> Claim(const std::string& path);
  // Removes "rows", removes the directory itself if nothing else is in it, and releases the lock.
  ~SpillDirectory();
  SpillDirectory(const SpillDirectory&) = delete;
  SpillDirectory& operator=(const SpillDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Returns the path of the subdirectory for the rows, which the caller creates.
  std::string rows_path() const { return path_ + "/rows"; }

 private:
  SpillDirectory(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  const std::string path_;
  const int lock_;  // file descriptor of the locked file
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_SPILL_SPILL_DIRECTORY_H_
