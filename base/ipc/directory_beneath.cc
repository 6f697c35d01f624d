// SPDX-License-Identifier: Apache-2.0
#include "base/ipc/directory_beneath.h"

#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem::ipc {
namespace {

namespace fs = std::filesystem;

constexpr int kFlags = O_PATH | O_DIRECTORY | O_CLOEXEC;

// Returns `path` without "." and "..", as text, from the root of the file system.
absl::StatusOr<fs::path> Absolute(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat("'", path, "' is no path: ", error.message()));
  fs::path normal = absolute.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();  // without a "/" at the end
}

// Returns the path from `root` to `path`, if `path` begins with `root`.
std::optional<fs::path> Below(const fs::path& root, const fs::path& path) {
  auto rest = path.begin();
  for (const fs::path& part : root) {
    if (rest == path.end() || *rest != part) return std::nullopt;
    ++rest;
  }
  fs::path below;
  for (; rest != path.end(); ++rest) below /= *rest;
  return below.empty() ? fs::path(".") : below;
}

}  // namespace

absl::StatusOr<Descriptor> OpenDirectoryBeneath(const std::string& root, const std::string& path,
                                                BeneathMethod method) {
  const auto failed = [&](int error) {
    const std::string what = absl::StrCat("directory '", path, "' below '", root, "'");
    // ELOOP: a symbolic link, if components are opened one by one.
    if (error == EXDEV || error == ELOOP) {
      return absl::PermissionDeniedError(
          absl::StrCat(what, ": a symbolic link in it leads out, or cannot be followed here"));
    }
    return absl::ErrnoToStatus(error, what);
  };
  absl::StatusOr<fs::path> top = Absolute(root), target = Absolute(path);
  if (!top.ok()) return top.status();
  if (!target.ok()) return target.status();
  std::optional<fs::path> below = Below(*top, *target);
  if (!below.has_value()) {
    // The caller may spell the root by another path.
    std::error_code error;
    const fs::path real = fs::canonical(*top, error);
    if (!error) below = Below(real, *target);
  }
  if (!below.has_value()) {
    return absl::PermissionDeniedError(
        absl::StrCat("directory '", path, "' is not below '", root, "', where this process may use files"));
  }
  const Descriptor base(::open(top->c_str(), kFlags));
  if (!base.valid()) return failed(errno);
  const int opened = OpenBeneath(base.get(), below->string(), kFlags, method);
  if (opened < 0) return failed(errno);
  return Descriptor(opened);
}

}  // namespace tandem::ipc
