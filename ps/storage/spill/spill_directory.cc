// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/spill/spill_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem::ps {
namespace {

std::string LockPath(const std::string& path) { return absl::StrCat(path, "/tandem.lock"); }

absl::Status Failed(int error, absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat("spill directory ", path, ": ", what));
}

// Returns what the process that holds the lock wrote about itself.
std::string Holder(int lock) {
  char text[256] = {};
  const ssize_t size = ::pread(lock, text, sizeof(text) - 1, 0);
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : "another process";
}

bool SameFile(int fd, const std::string& path) {
  struct stat open, named;
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

absl::StatusOr<int> Lock(const std::string& path) {
  const std::string lock_path = LockPath(path);
  while (true) {
    const int fd = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return Failed(errno, "cannot open its lock file", path);
    absl::Cleanup close = [fd] { ::close(fd); };
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) return Failed(errno, "cannot lock it", path);
      return absl::AlreadyExistsError(absl::StrCat("spill directory ", path, " is in use by ", Holder(fd),
                                                   ": each server needs one of its own"));
    }
    // The previous holder may have removed the file between open and flock.
    if (!SameFile(fd, lock_path)) continue;
    char host[256] = {};
    ::gethostname(host, sizeof(host) - 1);
    const std::string self = absl::StrCat("process ", ::getpid(), " on ", host);
    // On a full disk the lock is valid without a name in it.
    [[maybe_unused]] const bool named =
        ::ftruncate(fd, 0) == 0 && ::pwrite(fd, self.data(), self.size(), 0) >= 0;
    std::move(close).Cancel();
    return fd;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpillDirectory>> SpillDirectory::Claim(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return Failed(error.value(), "cannot be made", path);
  absl::StatusOr<int> lock = Lock(path);
  if (!lock.ok()) return lock.status();
  std::unique_ptr<SpillDirectory> directory(new SpillDirectory(path, *lock));
  std::filesystem::remove_all(directory->rows_path(), error);
  if (error) return Failed(error.value(), "what an earlier server left in it cannot be removed", path);
  return directory;
}

SpillDirectory::~SpillDirectory() {
  std::error_code ignored;  // the next server removes what is left
  std::filesystem::remove_all(rows_path(), ignored);
  ::unlink(LockPath(path_).c_str());
  ::rmdir(path_.c_str());
  ::close(lock_);
}

}  // namespace tandem::ps
