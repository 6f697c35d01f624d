// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PLAN_VARIABLE_OPTIONS_H_
#define TANDEM_LAUNCHER_PLAN_VARIABLE_OPTIONS_H_

// Options of a command that an environment variable sets as well. CLI11's own `envname` reads the variables
// of all subcommands whichever runs, and blames a bad value on a flag that nobody gave.

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class Option;
}

namespace tandem::launcher {

// Begins the note that Add appends to a description: " (variable PET_NNODES)".
inline constexpr char kVariableNote[] = " (variable ";

// A list of options and their variables. Not thread-safe.
class VariableOptions {
 public:
  // Names `variable` in the help of `option`, which Read sets from it.
  CLI::Option* Add(CLI::Option* option, std::string variable);

  // Sets the options that the command line has not given from their variables; an empty variable counts as
  // absent. Called by the command that runs, after the command line is parsed. Returns the variables that
  // were used, by option: {"--nnodes", "PET_NNODES"}. Throws CLI::ValidationError, which names the variable,
  // for a bad value.
  std::map<std::string, std::string> Read() const;

 private:
  std::vector<std::pair<CLI::Option*, std::string>> options_;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PLAN_VARIABLE_OPTIONS_H_
