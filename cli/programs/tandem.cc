// SPDX-License-Identifier: Apache-2.0
// The program `tandem`, which starts jobs, serves tables, trains and inspects. `tandem --help` lists its
// commands; some are companions (cli/command_line/companions.h).

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/string_view.h"
#include "cli/command_line/companions.h"
#include "cli/commands/commands.h"
#include "cli/programs/program.h"
#include "launcher/plan/flags.h"

namespace tandem::cli {
namespace {

// The commands, in the order in which `tandem --help` lists them.
constexpr AddCommand* kCommands[] = {AddRun,
                                     AddTrain,
                                     AddCompanion<kRl>,
                                     AddEval,
                                     AddPredict,
                                     AddPs,
                                     AddCompanion<kReplay>,
                                     AddCompanion<kWeights>,
                                     AddStore,
                                     AddHealth,
                                     AddKey,
                                     AddGrant,
                                     AddCert,
                                     AddCompanion<kTop>,
                                     AddCompanion<kStatus>,
                                     AddCompanion<kTrace>,
                                     AddCompanion<kTable>,
                                     AddCkpt,
                                     AddData,
                                     AddCompanion<kBench>,
                                     AddCompanion<kDoctor>,
                                     AddVersion,
                                     AddCompletion,
                                     AddMan};

int Main(int argc, char** argv) {
  const absl::string_view command = argc > 1 ? argv[1] : "";
  if (const Companion* const companion = FindCompanion(command)) return BecomeCompanion(*companion, argv);
  CommandContext context;
  CLI::App app{"Distributed training with parameter servers and collectives in tandem"};
  app.name("tandem");
  app.set_version_flag("--version", std::function<std::string()>(VersionText),
                       "Print version, commit and backends");
  app.require_subcommand(1);
  for (AddCommand* const add : kCommands) add(app, &context);
  if (command == "run") {
    // The rest of the command line belongs to the program to start. CLI11 would look for tandem's flags in
    // it.
    const std::vector<std::string> words(argv + 2, argv + argc);
    const size_t start = launcher::ProgramStart(*app.get_subcommand("run"), words);
    context.program.assign(words.begin() + static_cast<std::ptrdiff_t>(start), words.end());
    argc = 2 + static_cast<int>(start);
    if (start > 0 && words[start - 1] == "--") --argc;
  }
  return RunCommand(app, context, argc, argv);
}

}  // namespace
}  // namespace tandem::cli

int main(int argc, char** argv) { return tandem::cli::Main(argc, argv); }
