// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_OWN_PROGRAM_H_
#define TANDEM_BASE_OWN_PROGRAM_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Returns the absolute path of the program that this process runs.
absl::StatusOr<std::string> OwnProgram();

// Returns the path of the program `name` in the folder of this one, where an installation and a build have
// all programs of Tandem. Does not look whether it exists.
absl::StatusOr<std::string> ProgramBeside(absl::string_view name);

}  // namespace tandem

#endif  // TANDEM_BASE_OWN_PROGRAM_H_
