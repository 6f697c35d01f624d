// SPDX-License-Identifier: Apache-2.0
#include "base/temporary_directory.h"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<TemporaryDirectory>> TemporaryDirectory::Make(absl::string_view name) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  // mkdtemp replaces the last six letters.
  std::string path = absl::StrCat(error ? "/tmp" : parent.string(), "/", name, "-XXXXXX");
  if (::mkdtemp(path.data()) == nullptr) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot make a directory like ", path, " (TMPDIR chooses another place)"));
  }
  return std::unique_ptr<TemporaryDirectory>(new TemporaryDirectory(std::move(path)));
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace tandem
