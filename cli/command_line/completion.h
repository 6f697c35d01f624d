// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMAND_LINE_COMPLETION_H_
#define TANDEM_CLI_COMMAND_LINE_COMPLETION_H_

#include <string>

#include "cli/command_line/command_tree.h"

namespace tandem::cli {

// Return a script that makes the shell complete the program's commands, its flags, and the values of flags
// that have a fixed set. Other words are completed as file names.
std::string BashCompletion(const Command& program);
std::string ZshCompletion(const Command& program);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMAND_LINE_COMPLETION_H_
