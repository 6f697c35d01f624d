// SPDX-License-Identifier: Apache-2.0
#include "base/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/checksummed_file.h"
#include "base/clock.h"
#include "base/status.h"

namespace tandem {
namespace {

absl::Status LockFailed(int error, absl::string_view doing, const std::string& path) {
  if (error == ENOSPC || error == EDQUOT) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot ", doing, " ", path, ": the disk is full"));
  }
  if (error == ELOOP) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is a symbolic link, which is not followed: remove it"));
  }
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", doing, " ", path));
}

// Makes `directory` and its parents where they are missing, and makes their names durable.
absl::Status MakeDirectories(const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> parents;  // of the directories that are made
  for (fs::path path = fs::absolute(directory, error).lexically_normal(); !error && !fs::exists(path, error);
       path = path.parent_path()) {
    parents.push_back(path.parent_path());
  }
  if (!error) fs::create_directories(directory, error);
  if (error) return LockFailed(error.value(), "make the directory", directory);
  for (const fs::path& parent : parents) TANDEM_RETURN_IF_ERROR(SyncDirectory(parent.string()));
  return absl::OkStatus();
}

// Returns the lock file's content, a process id, for messages.
std::string HolderOf(int descriptor) {
  char text[32];
  const ssize_t n = ::pread(descriptor, text, sizeof(text), 0);
  return n <= 0 ? "unknown" : std::string(absl::StripSuffix(absl::string_view(text, n), "\n"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DirectoryLock>> DirectoryLock::Take(const std::string& directory,
                                                                   int wait_ms) {
  TANDEM_RETURN_IF_ERROR(MakeDirectories(directory));
  const std::string path = absl::StrCat(directory, "/LOCK");
  // The file is overwritten below: a link in a directory from somebody else would choose which.
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
  if (descriptor < 0) return LockFailed(errno, "open", path);
  std::unique_ptr<DirectoryLock> lock(new DirectoryLock(descriptor));
  struct stat info;
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file: remove it"));
  }
  const absl::Time deadline = MonotonicNow() + absl::Milliseconds(wait_ms);
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return LockFailed(errno, "lock", path);
    if (MonotonicNow() >= deadline) {
      return absl::UnavailableError(absl::StrCat(path, " is held by process ", HolderOf(descriptor),
                                                 ": another server uses this directory, perhaps one that is "
                                                 "stopped; end it, or choose another directory"));
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
  const std::string self = absl::StrCat(::getpid(), "\n");
  if (::ftruncate(descriptor, 0) != 0 ||
      ::pwrite(descriptor, self.data(), self.size(), 0) != static_cast<ssize_t>(self.size())) {
    return LockFailed(errno, "write", path);
  }
  return lock;
}

DirectoryLock::~DirectoryLock() { ::close(descriptor_); }

}  // namespace tandem
