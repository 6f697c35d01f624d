// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMANDS_PS_MOVES_H_
#define TANDEM_CLI_COMMANDS_PS_MOVES_H_

#include "cli/commands/commands.h"

namespace CLI {
class App;
}

namespace tandem::cli {

// Adds `tandem ps move`, `tandem ps drain` and `tandem ps balance` to `ps`.
void AddPsMoves(CLI::App& ps, CommandContext* context);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_PS_MOVES_H_
