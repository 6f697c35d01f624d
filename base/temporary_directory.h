// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_TEMPORARY_DIRECTORY_H_
#define TANDEM_BASE_TEMPORARY_DIRECTORY_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// A directory for files that a program needs while it runs. The destructor removes it with its content.
class TemporaryDirectory {
 public:
  // Creates a directory whose name begins with `name`, below TMPDIR or else /tmp. Only this user may enter
  // it. The error names the path.
  static absl::StatusOr<std::unique_ptr<TemporaryDirectory>> Make(absl::string_view name);
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

}  // namespace tandem

#endif  // TANDEM_BASE_TEMPORARY_DIRECTORY_H_
