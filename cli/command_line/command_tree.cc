// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line/command_tree.h"

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "launcher/plan/variable_options.h"

namespace tandem::cli {
namespace {

// Returns the set in a type such as "TEXT:{auto,grpc}".
std::vector<std::string> Choices(absl::string_view type) {
  const size_t open = type.find(":{"), close = type.find('}');
  if (open == absl::string_view::npos || close == absl::string_view::npos || close < open) return {};
  return absl::StrSplit(type.substr(open + 2, close - open - 2), ',');
}

Command ReadCommand(const CLI::App& app, const std::string& path) {
  Command command{.path = path, .description = app.get_description(), .footer = app.get_footer()};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    (option->get_positional() ? command.positionals : command.flags).push_back(ReadFlag(*option));
  }
  for (const CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (child->get_group().empty() || child->get_name().empty()) continue;
    command.commands.push_back(ReadCommand(*child, absl::StrCat(path, " ", child->get_name())));
  }
  return command;
}

}  // namespace

const std::string& Flag::name() const {
  for (const std::string& name : names) {
    if (absl::StartsWith(name, "--")) return name;
  }
  return names.front();
}

std::string Command::name() const {
  const size_t space = path.rfind(' ');
  return space == std::string::npos ? path : path.substr(space + 1);
}

Flag ReadFlag(const CLI::Option& option) {
  Flag flag;
  if (option.get_positional()) {
    flag.names.push_back(option.get_name(true));
  } else {
    for (const std::string& name : option.get_snames()) flag.names.push_back(absl::StrCat("-", name));
    for (const std::string& name : option.get_lnames()) flag.names.push_back(absl::StrCat("--", name));
  }
  const std::string type = option.get_type_name();
  flag.takes_value = option.get_items_expected_min() > 0;
  if (flag.takes_value) flag.value = type.substr(0, type.find(':'));
  flag.choices = Choices(type);
  flag.description = option.get_description();
  flag.default_value = option.get_default_str();
  const size_t note = flag.description.rfind(launcher::kVariableNote);
  if (note != std::string::npos && flag.description.back() == ')') {
    const size_t begin = note + sizeof(launcher::kVariableNote) - 1;
    flag.variable = flag.description.substr(begin, flag.description.size() - 1 - begin);
    flag.description.resize(note);
  }
  return flag;
}

Command ReadCommandTree(const CLI::App& app) { return ReadCommand(app, app.get_name()); }

}  // namespace tandem::cli
