// SPDX-License-Identifier: Apache-2.0
#include "worker/job/path_expansion.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/local_path.h"
#include "base/status.h"

namespace tandem::worker {

absl::StatusOr<std::string> ExpandPath(absl::string_view text) {
  std::string path;
  absl::string_view rest = text;
  while (!rest.empty()) {
    if (absl::StartsWith(rest, "$${")) {
      path += "${";
      rest.remove_prefix(3);
    } else if (absl::StartsWith(rest, "${")) {
      const size_t end = rest.find('}');
      if (end == absl::string_view::npos) {
        return absl::InvalidArgumentError(absl::StrCat("has a '${' without '}': '", text, "'"));
      }
      absl::string_view name = rest.substr(2, end - 2);
      const size_t separator = name.find(":-");
      const absl::string_view fallback =
          separator == absl::string_view::npos ? absl::string_view() : name.substr(separator + 2);
      name = name.substr(0, separator);
      const char* value = std::getenv(std::string(name).c_str());
      if (value != nullptr && *value != '\0') {
        path += value;
      } else if (separator != absl::string_view::npos) {
        absl::StrAppend(&path, fallback);
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat("needs the environment variable ", name, ", which is not set: '", text, "'"));
      }
      rest.remove_prefix(end + 1);
    } else {
      path += rest.front();
      rest.remove_prefix(1);
    }
  }
  if (path == "~" || absl::StartsWith(path, "~/")) {
    const char* home = std::getenv("HOME");
    if (home == nullptr || *home == '\0') {
      return absl::InvalidArgumentError(absl::StrCat("begins with '~', but HOME is not set: '", text, "'"));
    }
    path.replace(0, 1, home);
  }
  if (path.empty()) return absl::InvalidArgumentError("is an empty path");
  return path;
}

absl::StatusOr<std::string> ResolvePath(absl::string_view text, absl::string_view directory) {
  TANDEM_ASSIGN_OR_RETURN(std::string path, ExpandPath(text));
  if (const absl::Status local = CheckLocalPath(path); !local.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("must be a path: ", local.message()));
  }
  if (directory.empty() || path[0] == '/' || absl::StartsWith(text, "${")) return path;
  return absl::StrCat(directory, absl::EndsWith(directory, "/") ? "" : "/", path);
}

std::string DirectoryOf(absl::string_view file) {
  const size_t slash = file.rfind('/');
  if (slash == absl::string_view::npos) return "";
  return std::string(file.substr(0, std::max<size_t>(slash, 1)));
}

std::string EscapePath(absl::string_view path) {
  std::string escaped = absl::StrReplaceAll(path, {{"${", "$${"}});
  if (absl::StartsWith(escaped, "~")) escaped.insert(0, "./");
  return escaped;
}

}  // namespace tandem::worker
