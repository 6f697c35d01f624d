// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMAND_LINE_TREE_JSON_H_
#define TANDEM_CLI_COMMAND_LINE_TREE_JSON_H_

// The commands of one program as text for another: `tandem man` describes those of `tandem-rl`.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/command_line/command_tree.h"

namespace tandem::cli {

// The flag with which a program prints its commands, and nothing else.
inline constexpr char kTreeFlag[] = "--command-tree";

// Returns one JSON object.
std::string TreeToJson(const Command& tree);

// Reads what TreeToJson has returned. InvalidArgument: the text is something else.
absl::StatusOr<Command> ParseTree(absl::string_view text);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMAND_LINE_TREE_JSON_H_
