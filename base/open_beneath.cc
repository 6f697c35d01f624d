// SPDX-License-Identifier: Apache-2.0
#include "base/open_beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr int kDirectory = O_PATH | O_DIRECTORY | O_CLOEXEC;
// Without O_NONBLOCK the opening of a pipe would wait for a writer.
constexpr int kFile = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

int Openat2(int root, const std::string& below, int flags) {
  struct open_how how = {};
  how.flags = static_cast<uint64_t>(flags);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  return static_cast<int>(::syscall(SYS_openat2, root, below.c_str(), &how, sizeof(how)));
}

// Opens the component `part` of the directory `at`. Returns -1 and sets errno on an error.
int OpenComponent(int at, const fs::path& part, int flags) {
  if (part == "..") {  // callers have removed those that could be meant well
    errno = EXDEV;
    return -1;
  }
  const int next = ::openat(at, part.c_str(), flags | O_NOFOLLOW);
  if (next >= 0 || errno != ENOTDIR) return next;
  // O_PATH | O_DIRECTORY takes a link for a file that is no directory.
  struct stat entry;
  const bool link = ::fstatat(at, part.c_str(), &entry, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(entry.st_mode);
  errno = link ? ELOOP : ENOTDIR;
  return -1;
}

// Opens the last component with `flags`, and those before it as directories.
int OpenComponents(int root, const fs::path& below, int flags) {
  int at = ::openat(root, ".", kDirectory);
  for (auto part = below.begin(); part != below.end() && at >= 0;) {
    const fs::path& name = *part;
    const bool last = std::next(part) == below.end();
    const int next = OpenComponent(at, name, last ? flags : kDirectory);
    const int error = errno;
    ::close(at);
    errno = error;
    at = next;
    ++part;
  }
  return at;
}

}  // namespace

int OpenBeneath(int root, const std::string& below, int flags, BeneathMethod method) {
  int opened = -1;
  if (method != BeneathMethod::kComponents) opened = Openat2(root, below, flags);
  const bool lacking = opened < 0 && (errno == ENOSYS || errno == EPERM || errno == EINVAL);
  if (method == BeneathMethod::kComponents || (method == BeneathMethod::kAuto && lacking)) {
    opened = OpenComponents(root, below, flags);
  }
  return opened;
}

absl::StatusOr<int> OpenFileBeneath(const std::string& directory, const std::string& name,
                                    BeneathMethod method) {
  const std::string path = absl::StrCat(directory, "/", name);
  const auto refused = [&](absl::string_view why) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, why, "; only files within the directory are read: put the file itself there"));
  };
  const fs::path below = fs::path(name).lexically_normal();
  if (below.empty() || below.is_absolute() || *below.begin() == "..")
    return refused(" leads out of the directory");
  const int root = ::open(directory.c_str(), kDirectory);
  if (root < 0) return absl::ErrnoToStatus(errno, absl::StrCat("opening ", path));
  const int opened = OpenBeneath(root, below.string(), kFile, method);
  const int error = errno;
  ::close(root);
  if (opened >= 0) return opened;
  if (error == EXDEV || error == ELOOP) return refused(" is a symbolic link that leads out of the directory");
  return absl::ErrnoToStatus(error, absl::StrCat("opening ", path));
}

}  // namespace tandem
