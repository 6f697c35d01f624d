// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMANDS_COMMANDS_H_
#define TANDEM_CLI_COMMANDS_COMMANDS_H_

// The table of the subcommands of `tandem`.
//
// Each subcommand has a file of its own: NAME.cc in this folder defines AddName, which declares the flags of
// `tandem name` on `app` and the function that it runs. A new subcommand needs that file, its line in
// cli/CMakeLists.txt, and its name in the two lists below.

#include <string>

#include "base/command_context.h"
#include "bench/suites/commands.h"

namespace CLI {
class App;
}

namespace tandem::cli {

// Declares one subcommand. Its callback runs it and sets `context->exit_code`. `context` must outlive the
// parsing.
using AddCommand = void(CLI::App& app, CommandContext* context);

AddCommand AddRun, AddTrain, AddRl, AddEval, AddPredict, AddPs, AddReplay, AddStore, AddTop, AddStatus,
    AddTrace, AddTable, AddCkpt, AddData, AddDoctor, AddVersion, AddCompletion, AddMan, AddWeights;

// All subcommands, in the order in which `tandem --help` lists them.
inline constexpr AddCommand* kCommands[] = {AddRun,          AddTrain,  AddRl,      AddEval,       AddPredict,
                                            AddPs,           AddReplay, AddWeights, AddStore,      AddTop,
                                            AddStatus,       AddTrace,  AddTable,   AddCkpt,       AddData,
                                            bench::AddBench, AddDoctor, AddVersion, AddCompletion, AddMan};

// Returns the lines that `tandem --version` prints, without the last line's end.
std::string VersionText();

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_COMMANDS_H_
