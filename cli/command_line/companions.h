// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMAND_LINE_COMPANIONS_H_
#define TANDEM_CLI_COMMAND_LINE_COMPANIONS_H_

// Commands of `tandem` that are programs of their own, in the same folder: `tandem rl` becomes `tandem-rl
// rl`. A user sees one program; the build of the one that trains recommenders, which the quickstart waits
// for, is shorter.

#include "absl/strings/string_view.h"
#include "base/command_context.h"
#include "cli/command_line/command_tree.h"

namespace CLI {
class App;
}

namespace tandem::cli {

struct Companion {
  const char* command;
  const char* program;      // the name of its file
  const char* description;  // the command's, for `tandem --help`
};

inline constexpr Companion kRl = {"rl", "tandem-rl",
                                  "Train a reinforcement-learning job, or use a saved model"};
inline constexpr Companion kReplay = {"replay", "tandem-rl",
                                      "Serve replay tables, and look at those of a running server"};
inline constexpr Companion kWeights = {"weights", "tandem-rl", "Serve versions of models, and list them"};
inline constexpr Companion kTop = {"top", "tandem-inspect", "A job's parameter servers and tables, live"};
inline constexpr Companion kStatus = {"status", "tandem-inspect",
                                      "Who is in a running job: host, pid, step, last heartbeat, state"};
inline constexpr Companion kTrace = {
    "trace", "tandem-inspect",
    "What all processes of a running job do, for a few seconds, as a Perfetto trace"};
inline constexpr Companion kTable = {"table", "tandem-inspect",
                                     "List a running job's tables, change their update modes"};
inline constexpr Companion kDoctor = {
    "doctor", "tandem-inspect",
    "Check this machine: network, memory, limits, processor, MPI, GPUs, versions"};
inline constexpr Companion kBench = {"bench", "tandem-bench", "Measure this machine"};

// Returns the companion of a command; null: none has it.
const Companion* FindCompanion(absl::string_view command);

// Declares the command of a companion, without its flags.
void DeclareCompanion(CLI::App& app, const Companion& companion);
template <const Companion& companion>
void AddCompanion(CLI::App& app, CommandContext*) {
  DeclareCompanion(app, companion);
}

// Runs the companion in this process's place. Returns only if that fails: the exit code, after an error on
// stderr.
int BecomeCompanion(const Companion& companion, char** argv);

// Puts the commands of the companions with all their flags in place of those that DeclareCompanion has
// declared. Starts the companions to ask them (PrintTree in cli/command_line/tree_json.h). A companion that
// is not installed, or that does not answer within ten seconds, stays as it is.
void CompleteTree(Command* tree);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMAND_LINE_COMPANIONS_H_
