// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMANDS_PS_SUBSCRIBE_H_
#define TANDEM_CLI_COMMANDS_PS_SUBSCRIBE_H_

#include "cli/commands/commands.h"

namespace CLI {
class App;
}

namespace tandem::cli {

// Adds `tandem ps subscribe` to `ps`.
void AddPsSubscribe(CLI::App& ps, CommandContext* context);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_PS_SUBSCRIBE_H_
