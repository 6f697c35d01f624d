// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/replace_directory.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace tandem::ps {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kReplaced = "replaced-";

// Returns whether ReplaceDirectory gives this name to a checkpoint that it moves aside: "replaced-step-12".
bool IsReplacedCheckpoint(absl::string_view name) {
  return absl::ConsumePrefix(&name, kReplaced) && absl::ConsumePrefix(&name, "step-") && !name.empty() &&
         std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
}

}  // namespace

DirectoryMoves::DirectoryMoves()
    : rename([](const char* from, const char* to) { return ::rename(from, to); }),
      exchange([](const char* from, const char* to) {
        return ::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE);
      }) {}

absl::StatusOr<std::string> ReplaceDirectory(const std::string& from, const std::string& to,
                                             const DirectoryMoves& moves) {
  if (moves.rename(from.c_str(), to.c_str()) == 0) return std::string();
  const std::string what = absl::StrCat("renaming ", from, " to ", to);
  if (errno != EEXIST && errno != ENOTEMPTY) return absl::ErrnoToStatus(errno, what);
  if (moves.exchange(from.c_str(), to.c_str()) == 0) return from;
  const fs::path path(to);
  const std::string aside = (path.parent_path() / absl::StrCat(kReplaced, path.filename().string())).string();
  if (moves.rename(to.c_str(), aside.c_str()) != 0) return absl::ErrnoToStatus(errno, what);
  if (moves.rename(from.c_str(), to.c_str()) == 0) return aside;
  const absl::Status failed = absl::ErrnoToStatus(errno, what);
  if (moves.rename(aside.c_str(), to.c_str()) == 0) return failed;
  return Annotate(failed, absl::StrCat("the replaced directory is now ", aside));
}

absl::Status FinishReplacements(const std::string& root) {
  std::error_code error;
  std::vector<fs::path> replaced;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    if (IsReplacedCheckpoint(it->path().filename().string())) replaced.push_back(it->path());
  }
  if (error == std::errc::no_such_file_or_directory) return absl::OkStatus();
  for (const fs::path& aside : replaced) {
    if (error) break;
    const std::string name = aside.filename().string();
    const fs::path to = aside.parent_path() / std::string(absl::StripPrefix(name, kReplaced));
    if (fs::exists(to, error)) {
      fs::remove_all(aside, error);
    } else if (!error) {
      fs::rename(aside, to, error);
    }
  }
  return error ? absl::ErrnoToStatus(error.value(), absl::StrCat("ending interrupted replacements in ", root))
               : absl::OkStatus();
}

}  // namespace tandem::ps
