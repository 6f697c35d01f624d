// SPDX-License-Identifier: Apache-2.0
#include "launcher/host/socket_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::launcher {
namespace {

constexpr char kPrefix[] = "tandem-sockets-";
// Longest path of the parent, which leaves some 60 bytes for the names of sockets.
constexpr size_t kLongestParent = 24;
// A directory without a lock that is younger may be that of a launcher which is about to lock it.
constexpr std::time_t kYoungSeconds = 60;

std::vector<std::string> Parents() {
  std::vector<std::string> parents;
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr) {
    if (*runtime == '/' && std::strlen(runtime) <= kLongestParent) parents.emplace_back(runtime);
  }
  parents.emplace_back("/tmp");
  parents.emplace_back("/dev/shm");
  return parents;
}

// Locks a directory. Not valid if another process holds the lock, or if there is no such directory of this
// user.
ipc::Descriptor Lock(const std::string& path) {
  ipc::Descriptor directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat about {};
  if (!directory.valid() || fstat(directory.get(), &about) != 0 || about.st_uid != geteuid() ||
      flock(directory.get(), LOCK_EX | LOCK_NB) != 0) {
    return ipc::Descriptor();
  }
  return directory;
}

void RemoveAbandoned(const std::string& parent) {
  std::error_code ignored;
  for (std::filesystem::directory_iterator it(parent, ignored), end; it != end; it.increment(ignored)) {
    if (!absl::StartsWith(it->path().filename().native(), kPrefix)) continue;
    struct stat about {};
    if (lstat(it->path().c_str(), &about) != 0 || about.st_mtime > std::time(nullptr) - kYoungSeconds)
      continue;
    if (Lock(it->path()).valid()) std::filesystem::remove_all(it->path(), ignored);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<SocketDirectory>> SocketDirectory::Make() {
  std::vector<std::string> reasons;
  for (const std::string& parent : Parents()) {
    RemoveAbandoned(parent);
    std::string path = absl::StrCat(parent, "/", kPrefix, "XXXXXX");
    if (mkdtemp(path.data()) == nullptr) {
      reasons.push_back(absl::StrCat(parent, ": ", std::strerror(errno)));
      continue;
    }
    ipc::Descriptor lock = Lock(path);
    if (lock.valid()) {
      return std::unique_ptr<SocketDirectory>(new SocketDirectory(std::move(path), std::move(lock)));
    }
    reasons.push_back(absl::StrCat(path, " cannot be locked: ", std::strerror(errno)));
    rmdir(path.c_str());
  }
  return absl::UnavailableError(absl::StrCat("no directory for the unix sockets of the job can be created: ",
                                             absl::StrJoin(reasons, "; ")));
}

SocketDirectory::~SocketDirectory() {
  std::error_code ignored;  // another launcher removes what is left
  std::filesystem::remove_all(path_, ignored);
}

std::string SocketDirectory::Address(absl::string_view name) const {
  return absl::StrCat("unix:", path_, "/", name);
}

}  // namespace tandem::launcher
