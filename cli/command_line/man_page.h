// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMAND_LINE_MAN_PAGE_H_
#define TANDEM_CLI_COMMAND_LINE_MAN_PAGE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "cli/command_line/command_tree.h"

namespace tandem::cli {

// Returns the program's page of manual section 1 in roff's `man` macros: every command with its flags.
std::string ManPage(const Command& program, absl::string_view version);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMAND_LINE_MAN_PAGE_H_
