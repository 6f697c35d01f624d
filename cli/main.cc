// SPDX-License-Identifier: Apache-2.0
// The program `tandem`, which starts jobs, serves tables, trains and inspects. `tandem --help` lists its
// subcommands.

#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "cli/command_line/mistakes.h"
#include "cli/commands/commands.h"
#include "launcher/plan/flags.h"

namespace tandem::cli {

namespace {

int Main(int argc, char** argv) {
#ifdef NDEBUG
  // Debian's absl searches for lock cycles at every acquisition, which costs a server a few percent of its
  // time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  CommandContext context;
  CLI::App app{"Distributed training with parameter servers and collectives in tandem"};
  app.name("tandem");
  app.set_version_flag("--version", std::function<std::string()>(VersionText),
                       "Print version, commit and backends");
  app.require_subcommand(1);
  for (AddCommand* const add : kCommands) add(app, &context);
  int ours = argc;
  if (argc > 1 && absl::string_view(argv[1]) == "run") {
    // The rest of the command line belongs to the program to start. CLI11 would look for tandem's flags in
    // it.
    const std::vector<std::string> words(argv + 2, argv + argc);
    const size_t start = launcher::ProgramStart(*app.get_subcommand("run"), words);
    context.program.assign(words.begin() + static_cast<std::ptrdiff_t>(start), words.end());
    ours = 2 + static_cast<int>(start);
    if (start > 0 && words[start - 1] == "--") --ours;
  }
  try {
    app.parse(ours, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help or --version
    std::fputs(DescribeMistake(app, e).c_str(), stderr);
    return kUsageError;
  }
  return context.exit_code;
}

}  // namespace
}  // namespace tandem::cli

int main(int argc, char** argv) { return tandem::cli::Main(argc, argv); }
