// SPDX-License-Identifier: Apache-2.0
#include "cli/programs/program.h"

#include <cstdio>

#include "CLI/CLI.hpp"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "cli/command_line/command_tree.h"
#include "cli/command_line/mistakes.h"
#include "cli/command_line/tree_json.h"

namespace tandem::cli {

int RunCommand(CLI::App& app, const CommandContext& context, int argc, char** argv) {
#ifdef NDEBUG
  // Debian's absl searches for lock cycles at every acquisition, which costs a server a few percent of its
  // time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help or --version
    std::fputs(DescribeMistake(app, e).c_str(), stderr);
    return kUsageError;
  }
  return context.exit_code;
}

int RunCompanion(absl::Span<AddCommand* const> commands, int argc, char** argv) {
  CommandContext context;
  CLI::App app{"Commands of tandem"};
  app.name("tandem");
  app.require_subcommand(1);
  for (AddCommand* const add : commands) add(app, &context);
  if (argc == 2 && absl::string_view(argv[1]) == kTreeFlag) {
    std::puts(TreeToJson(ReadCommandTree(app)).c_str());
    return 0;
  }
  return RunCommand(app, context, argc, argv);
}

}  // namespace tandem::cli
