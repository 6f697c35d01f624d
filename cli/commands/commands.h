#ifndef TANDEM_CLI_COMMANDS_COMMANDS_H_
#define TANDEM_CLI_COMMANDS_COMMANDS_H_

// The subcommands of `tandem`, one file each: NAME.cc in job/, inspect/ or bench/ holds AddName, which
// declares the flags of `tandem name` and what it does.

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace tandem::cli {

// What main() and the subcommands tell each other. Outlives the parsing.
struct CommandContext {
  std::vector<std::string> program;  // of `tandem run`: the other program's command line
  int exit_code = 0;                 // set by the subcommand that ran
};

// The exit code of a command line that is wrong.
inline constexpr int kUsageError = 2;

// Prints "tandem COMMAND: message", when there is something wrong, and returns the exit code: 0 for OK,
// else 1.
int Report(const std::string& command, const absl::Status& status);

void AddRun(CLI::App& app, CommandContext* context);
void AddStore(CLI::App& app, CommandContext* context);
void AddPs(CLI::App& app, CommandContext* context);
void AddCkpt(CLI::App& app, CommandContext* context);
void AddData(CLI::App& app, CommandContext* context);
void AddTrain(CLI::App& app, CommandContext* context);
void AddBench(CLI::App& app, CommandContext* context);
void AddDoctor(CLI::App& app, CommandContext* context);
void AddTop(CLI::App& app, CommandContext* context);
void AddStatus(CLI::App& app, CommandContext* context);
void AddTrace(CLI::App& app, CommandContext* context);
void AddTable(CLI::App& app, CommandContext* context);
// The subcommands of `tandem bench` that time collectives.
void AddBenchCollectives(CLI::App* bench, CommandContext* context);
// `tandem bench ps`.
void AddBenchPs(CLI::App* bench, CommandContext* context);
// `tandem bench rpc`.
void AddBenchRpc(CLI::App* bench, CommandContext* context);
// `tandem bench rows`.
void AddBenchRows(CLI::App* bench, CommandContext* context);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_COMMANDS_H_
