#ifndef TANDEM_PS_STORAGE_SPILL_SPILL_DIRECTORY_H_
#define TANDEM_PS_STORAGE_SPILL_SPILL_DIRECTORY_H_

// A directory that one server has for itself while it runs.

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tandem::ps {

// Held by a lock on the file "tandem.lock" in it, which the kernel drops when the process dies, however it
// dies.
class SpillDirectory {
 public:
  // Makes the directory if need be, locks it and removes what a killed server has left in its subdirectory
  // "rows"; other files are not touched. AlreadyExists names the process that holds it; Unavailable or
  // PermissionDenied: it cannot be made or written, with the cause.
  static absl::StatusOr<std::unique_ptr<SpillDirectory>> Claim(const std::string& path);
  // Removes "rows", and the directory itself when nothing else is in it.
  ~SpillDirectory();
  SpillDirectory(const SpillDirectory&) = delete;
  SpillDirectory& operator=(const SpillDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Where the rows go; does not exist until whoever uses it makes it.
  std::string rows_path() const { return path_ + "/rows"; }

 private:
  SpillDirectory(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  const std::string path_;
  const int lock_;  // the open lock file
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_SPILL_SPILL_DIRECTORY_H_
