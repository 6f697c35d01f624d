// SPDX-License-Identifier: Apache-2.0
#include "base/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

constexpr size_t kChunkBytes = 1 << 16;

absl::Status CannotRead(const std::string& path, int error) {
  const std::string what = absl::StrCat("cannot read '", path, "'");
  if (error == EISDIR)
    return absl::InvalidArgumentError(absl::StrCat(what, ": it is a directory, not a file"));
  return absl::ErrnoToStatus(error, what);
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return CannotRead(path, errno);
  const absl::Cleanup close = [descriptor] { ::close(descriptor); };
  std::string text;
  const auto chunk = std::make_unique<char[]>(kChunkBytes);
  while (true) {
    const ssize_t size = ::read(descriptor, chunk.get(), kChunkBytes);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return CannotRead(path, errno);
    if (size == 0) return text;
    if (static_cast<size_t>(size) > max_bytes - text.size()) {
      return absl::OutOfRangeError(absl::StrCat("'", path, "' is larger than ", max_bytes, " bytes"));
    }
    text.append(chunk.get(), static_cast<size_t>(size));
  }
}

}  // namespace tandem
