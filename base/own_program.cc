// SPDX-License-Identifier: Apache-2.0
#include "base/own_program.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem {

absl::StatusOr<std::string> OwnProgram() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot read /proc/self/exe: ", error.message()));
  return path.string();
}

absl::StatusOr<std::string> ProgramBeside(absl::string_view name) {
  TANDEM_ASSIGN_OR_RETURN(const std::string own, OwnProgram());
  return (std::filesystem::path(own).parent_path() / std::string(name)).string();
}

}  // namespace tandem
