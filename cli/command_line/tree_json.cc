// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line/tree_json.h"

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {

// nlohmann's library finds these by their names.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Flag, names, takes_value, value, choices, description, default_value,
                                   variable)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Command, path, description, footer, flags, positionals, commands)

std::string TreeToJson(const Command& tree) { return nlohmann::json(tree).dump(); }

absl::StatusOr<Command> ParseTree(absl::string_view text) {
  const nlohmann::json json = ParseJson(text);
  try {
    return json.get<Command>();
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("no tree of commands: ", error.what()));
  }
}

}  // namespace tandem::cli
