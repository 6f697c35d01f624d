// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line/companions.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/own_program.h"
#include "cli/command_line/tree_json.h"
#include "launcher/host/run_program.h"

namespace tandem::cli {
namespace {

constexpr const Companion* kCompanions[] = {&kRl,    &kReplay, &kWeights, &kTop,  &kStatus,
                                            &kTrace, &kTable,  &kDoctor,  &kBench};
constexpr size_t kMaxTree = size_t{16} << 20;

// Returns the commands of a companion's program; none if it cannot be asked.
std::vector<Command> CommandsOf(const char* program) {
  const absl::StatusOr<std::string> path = ProgramBeside(program);
  if (!path.ok()) return {};
  const absl::StatusOr<std::string> text =
      launcher::RunProgram({*path, kTreeFlag}, absl::Seconds(10), kMaxTree);
  return text.ok() ? ParseTree(*text).value_or(Command()).commands : std::vector<Command>();
}

}  // namespace

const Companion* FindCompanion(absl::string_view command) {
  for (const Companion* const companion : kCompanions) {
    if (companion->command == command) return companion;
  }
  return nullptr;
}

void DeclareCompanion(CLI::App& app, const Companion& companion) {
  app.add_subcommand(companion.command, companion.description);
}

int BecomeCompanion(const Companion& companion, char** argv) {
  const absl::StatusOr<std::string> path = ProgramBeside(companion.program);
  if (!path.ok()) {
    Report(companion.command, path.status());
    return kCannotRun;
  }
  ::execv(path->c_str(), argv);
  Report(companion.command,
         absl::UnavailableError(absl::StrCat(
             "cannot run '", *path, "': ", std::strerror(errno), "; `tandem ", companion.command,
             "` is a program of its own, which belongs in the folder of `tandem`: install all of Tandem, or "
             "build it (scripts/quickstart to its end, or cmake --build FOLDER --target ",
             companion.program, ")")));
  return kCannotRun;
}

void CompleteTree(Command* tree) {
  std::map<std::string, std::vector<Command>> programs;
  for (Command& command : tree->commands) {
    const Companion* const companion = FindCompanion(command.name());
    if (companion == nullptr) continue;
    const auto [program, is_new] = programs.try_emplace(companion->program);
    if (is_new) program->second = CommandsOf(companion->program);
    for (const Command& whole : program->second) {
      if (whole.path == command.path) command = whole;
    }
  }
}

}  // namespace tandem::cli
