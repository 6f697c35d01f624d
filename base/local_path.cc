// SPDX-License-Identifier: Apache-2.0
#include "base/local_path.h"

#include <algorithm>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace tandem {

absl::Status CheckLocalPath(absl::string_view path) {
  const size_t end = path.find("://");
  if (end == absl::string_view::npos) return absl::OkStatus();
  // RFC 3986, section 3.1.
  const absl::string_view scheme = path.substr(0, end);
  const bool is_scheme = !scheme.empty() && absl::ascii_isalpha(scheme[0]) &&
                         std::all_of(scheme.begin(), scheme.end(), [](char c) {
                           return absl::ascii_isalnum(c) || c == '+' || c == '-' || c == '.';
                         });
  if (!is_scheme) return absl::OkStatus();
  if (absl::AsciiStrToLower(scheme) == "file") {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", Printable(path), "' is a URL, not a path; write the path without '", scheme, "://'"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", Printable(path), "' is an address of '", scheme,
      "://', and Tandem reads and writes files of mounted file systems only; mount the storage and give the "
      "path at which it is mounted"));
}

CLI::Option* LocalPath(CLI::Option* option) {
  return option->check(CLI::Validator(
      [](std::string& text) { return std::string(CheckLocalPath(text).message()); }, std::string()));
}

}  // namespace tandem
