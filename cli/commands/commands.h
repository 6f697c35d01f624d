#ifndef TANDEM_CLI_COMMANDS_COMMANDS_H_
#define TANDEM_CLI_COMMANDS_COMMANDS_H_

// The subcommands of `tandem`. Each has a file of its own: NAME.cc in this folder defines AddName, which
// declares the flags of `tandem name` and the function that it runs. `tandem bench` is declared in
// bench/suites/commands.h.

#include "base/command_context.h"

namespace CLI {
class App;
}

namespace tandem::cli {

void AddRun(CLI::App& app, CommandContext* context);
void AddStore(CLI::App& app, CommandContext* context);
void AddPs(CLI::App& app, CommandContext* context);
void AddCkpt(CLI::App& app, CommandContext* context);
void AddData(CLI::App& app, CommandContext* context);
void AddTrain(CLI::App& app, CommandContext* context);
void AddDoctor(CLI::App& app, CommandContext* context);
void AddTop(CLI::App& app, CommandContext* context);
void AddStatus(CLI::App& app, CommandContext* context);
void AddTrace(CLI::App& app, CommandContext* context);
void AddTable(CLI::App& app, CommandContext* context);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_COMMANDS_H_
