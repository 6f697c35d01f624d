// SPDX-License-Identifier: Apache-2.0
// tandem completion and tandem man: texts for shells and man(1) that follow from the commands and flags.

#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "cli/command_line/build_info.h"
#include "cli/command_line/command_tree.h"
#include "cli/command_line/companions.h"
#include "cli/command_line/completion.h"
#include "cli/command_line/man_page.h"
#include "cli/commands/commands.h"

namespace tandem::cli {
namespace {

// Returns the commands of the program and of its companions.
Command WholeTree(const CLI::App& app) {
  Command tree = ReadCommandTree(app);
  CompleteTree(&tree);
  return tree;
}

}  // namespace

void AddCompletion(CLI::App& app, CommandContext*) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion =
      app.add_subcommand("completion", "Print the script by which a shell completes `tandem`");
  completion->add_option("SHELL", *shell, "The shell")->required()->check(CLI::IsMember({"bash", "zsh"}));
  completion->footer(
      "bash: source <(tandem completion bash)\n"
      "zsh:  source <(tandem completion zsh), after compinit\n"
      "`cmake --install` puts both where the shells look for them.");
  completion->callback([shell, &app] {
    const Command tree = WholeTree(app);
    std::fputs((*shell == "bash" ? BashCompletion(tree) : ZshCompletion(tree)).c_str(), stdout);
  });
}

void AddMan(CLI::App& app, CommandContext*) {
  CLI::App* man = app.add_subcommand("man", "Print the manual page, for `man -l -`");
  man->callback([&app] { std::fputs(ManPage(WholeTree(app), GetBuildInfo().version).c_str(), stdout); });
}

}  // namespace tandem::cli
