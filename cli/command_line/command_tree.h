// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMAND_LINE_COMMAND_TREE_H_
#define TANDEM_CLI_COMMAND_LINE_COMMAND_TREE_H_

// The commands and flags of the program as plain data. Shell completion, the man page and the errors about
// command lines follow from it.

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tandem::cli {

// One flag, or one positional argument.
struct Flag {
  std::vector<std::string> names;    // "-r", "--report"; of a positional argument its name, "DIR"
  bool takes_value = false;          // false: a switch
  std::string value;                 // the value's type, "TEXT"; empty for a switch
  std::vector<std::string> choices;  // the possible values; empty: any
  std::string description;
  std::string default_value;  // empty: none is shown
  std::string variable;       // the environment variable that sets it; empty: none

  // Returns the first long name, or the only name.
  const std::string& name() const;
};

// One command. Hidden commands and flags are left out.
struct Command {
  std::string path;  // "tandem ckpt ls"
  std::string description;
  std::string footer;
  std::vector<Flag> flags;
  std::vector<Flag> positionals;
  std::vector<Command> commands;

  // Returns the last word of the path.
  std::string name() const;
};

// Returns the tree of `app`, whose name becomes the first word of each path.
Command ReadCommandTree(const CLI::App& app);

// Returns the description of one option. Takes hidden options as well.
Flag ReadFlag(const CLI::Option& option);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMAND_LINE_COMMAND_TREE_H_
