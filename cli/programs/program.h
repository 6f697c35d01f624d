// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_PROGRAMS_PROGRAM_H_
#define TANDEM_CLI_PROGRAMS_PROGRAM_H_

// The parts of main() that `tandem` and its companions share.

#include "absl/types/span.h"
#include "base/command_context.h"
#include "cli/commands/commands.h"

namespace CLI {
class App;
}

namespace tandem::cli {

// Parses the first `argc` words of `argv` with `app`, which runs the command that they name. Returns
// `context.exit_code`, or that of a wrong command line, after an error on stderr.
int RunCommand(CLI::App& app, const CommandContext& context, int argc, char** argv);

// main() of a companion that has these commands (cli/command_line/companions.h).
int RunCompanion(absl::Span<AddCommand* const> commands, int argc, char** argv);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PROGRAMS_PROGRAM_H_
