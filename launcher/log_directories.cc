// SPDX-License-Identifier: Apache-2.0
#include "launcher/log_directories.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/ipc/descriptor.h"
#include "base/logging.h"

namespace tandem::launcher {
namespace {

namespace fs = std::filesystem;

// Returns the process id of the server that uses `directory`; nullopt if none does. A server holds a lock of
// the file LOCK (base/directory_lock.h).
std::optional<std::string> UserOf(const fs::path& directory) {
  const std::string path = (directory / "LOCK").string();
  const ipc::Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid() || ::flock(file.get(), LOCK_SH | LOCK_NB) == 0) return std::nullopt;
  std::string pid = "unknown";
  std::ifstream(path) >> pid;
  return pid;
}

// Returns whether `name` is RUN-EPOCH.
bool IsOfRun(absl::string_view name, absl::string_view run_id) {
  return absl::ConsumePrefix(&name, run_id) && absl::ConsumePrefix(&name, "-") && !name.empty() &&
         std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
}

absl::Status Failed(const std::error_code& error, absl::string_view doing) {
  return absl::ErrnoToStatus(error.value(), absl::StrCat(doing, "; choose another --wal-dir"));
}

}  // namespace

absl::Status SetLogAside(const std::string& directory) {
  std::error_code error;
  if (!fs::exists(directory, error)) {
    return error ? Failed(error, absl::StrCat("cannot look at ", directory)) : absl::OkStatus();
  }
  if (const std::optional<std::string> user = UserOf(directory); user.has_value()) {
    return absl::UnavailableError(absl::StrCat(
        "the log in ", directory, " is in use by process ", *user,
        ", a server of a job with the same id: give each job an --rdzv-id or a --wal-dir of its own"));
  }
  const std::string old = absl::StrCat(directory, ".old");
  fs::remove_all(old, error);
  if (error) return Failed(error, absl::StrCat("cannot remove ", old));
  fs::rename(directory, old, error);
  if (error) return Failed(error, absl::StrCat("cannot rename ", directory, " to ", old));
  LogWarning(
      absl::StrCat("the log of an earlier job is now ", old,
                   " and is not read: this job begins at its newest "
                   "checkpoint (--resume). `tandem ps --wal-dir` with that directory serves its tables"));
  return absl::OkStatus();
}

void RemoveLogs(const std::string& directory, const std::string& run_id) {
  std::error_code error;
  std::vector<fs::path> rounds;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (IsOfRun(entry.path().filename().string(), run_id)) rounds.push_back(entry.path());
  }
  for (const fs::path& round : rounds) {
    std::vector<fs::path> servers;
    for (const auto& entry : fs::directory_iterator(round, error)) servers.push_back(entry.path());
    for (const fs::path& server : servers) {
      if (UserOf(server).has_value()) continue;
      error.clear();
      fs::remove_all(server, error);
      if (error) LogWarning(absl::StrCat("the log in ", server.string(), " stays: ", error.message()));
    }
    fs::remove(round, error);  // if it is empty
  }
  fs::remove(directory, error);  // if it is empty
}

bool HasServed(const std::string& directory, pid_t pid) {
  int64_t serving = 0;
  std::ifstream(ServingFile(directory)) >> serving;
  return serving == pid;
}

std::string ServingFile(const std::string& directory) { return absl::StrCat(directory, "/SERVING"); }

}  // namespace tandem::launcher
