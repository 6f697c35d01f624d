// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/variable_options.h"

#include <cstdlib>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tandem::launcher {

CLI::Option* VariableOptions::Add(CLI::Option* option, std::string variable) {
  option->description(absl::StrCat(option->get_description(), kVariableNote, variable, ")"));
  options_.emplace_back(option, std::move(variable));
  return option;
}

std::map<std::string, std::string> VariableOptions::Read() const {
  std::map<std::string, std::string> used;
  for (const auto& [option, variable] : options_) {
    const char* const value = std::getenv(variable.c_str());
    if (option->count() > 0 || value == nullptr || *value == '\0') continue;
    try {
      option->add_result(value);
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      // CLI11 names the option, which is not on the command line.
      const std::string why =
          absl::StrReplaceAll(error.what(), {{absl::StrCat(option->get_name(), ": "), ""}});
      throw CLI::ValidationError(absl::StrCat("the environment variable ", variable, "='", value,
                                              "' is not valid: ", why, "; correct or unset it"));
    }
    used.emplace(option->get_name(), variable);
  }
  return used;
}

}  // namespace tandem::launcher
