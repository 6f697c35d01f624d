// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMANDS_COMMANDS_H_
#define TANDEM_CLI_COMMANDS_COMMANDS_H_

// The commands of `tandem` and of its companions (cli/command_line/companions.h).
//
// Each has a file of its own: NAME.cc in this folder defines AddName, which declares the flags of
// `tandem name` on `app` and the function that it runs. A new command needs that file, its line in
// cli/CMakeLists.txt, its name below, and in the list of its program in cli/programs/.

#include <string>

#include "base/command_context.h"

namespace CLI {
class App;
}

namespace tandem::cli {

// Declares one subcommand. Its callback runs it and sets `context->exit_code`. `context` must outlive the
// parsing.
using AddCommand = void(CLI::App& app, CommandContext* context);

AddCommand AddRun, AddTrain, AddRl, AddEval, AddPredict, AddPs, AddReplay, AddStore, AddTop, AddStatus,
    AddTrace, AddTable, AddCert, AddCkpt, AddData, AddDoctor, AddGrant, AddHealth, AddKey, AddVersion,
    AddCompletion, AddMan, AddWeights;

// Returns the lines that `tandem --version` prints, without the last line's end.
std::string VersionText();

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_COMMANDS_H_
