// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line/mistakes.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/suggest.h"
#include "base/utf8.h"

namespace tandem::cli {
namespace {

// Returns a bound without needless digits: "3600.000000" is "3600". Sizes get units: "1048576" is "1MiB".
std::string Bound(absl::string_view text, bool is_size) {
  uint64_t bytes = 0;
  if (is_size && absl::SimpleAtoi(text, &bytes) && bytes > 0) {
    constexpr absl::string_view kUnits[] = {"", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    while (unit + 1 < std::size(kUnits) && bytes % 1024 == 0) {
      bytes /= 1024;
      ++unit;
    }
    return absl::StrCat(bytes, kUnits[unit]);
  }
  if (absl::StrContains(text, '.')) {
    while (absl::EndsWith(text, "0")) text.remove_suffix(1);
    if (absl::EndsWith(text, ".")) text.remove_suffix(1);
  }
  return std::string(text);
}

// Appends "(did you mean 'x'?)" if a name is close.
std::string Suggestion(absl::string_view word, const std::vector<std::string>& known) {
  const std::vector<absl::string_view> names(known.begin(), known.end());
  const absl::string_view closest = ClosestName(word, names);
  return closest.empty() ? "" : absl::StrCat(" (did you mean '", closest, "'?)");
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!child->get_group().empty()) names.push_back(child->get_name());
  }
  return names;
}

// Returns what is wrong with the first word that `app` did not understand.
std::string DescribeWord(const CLI::App& app, const std::string& word) {
  if (absl::StartsWith(word, "-") && word.size() > 1) {
    std::vector<std::string> known;
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back(absl::StrCat("--", name));
    }
    const std::string flag = word.substr(0, word.find('='));
    return absl::StrCat("unknown flag '", Printable(flag), "'", Suggestion(flag, known));
  }
  const std::vector<std::string> commands = CommandNames(app);
  if (commands.empty()) return absl::StrCat("unexpected argument '", Printable(word), "'");
  return absl::StrCat("unknown command '", Printable(word), "'", Suggestion(word, commands),
                      "; commands: ", absl::StrJoin(commands, ", "));
}

// Returns CLI11's message "--flag: text" with a readable text.
std::string DescribeValue(const CLI::App& app, absl::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == absl::string_view::npos) return std::string(message);
  const CLI::Option* option = app.get_option_no_throw(std::string(message.substr(0, colon)));
  return absl::StrCat(message.substr(0, colon + 2),
                      WithReadableRange(message.substr(colon + 2), option ? option->get_type_name() : ""));
}

}  // namespace

std::string WithReadableRange(absl::string_view message, absl::string_view type) {
  constexpr absl::string_view kValue = "Value ", kRange = " not in range ", kTo = " to ";
  const size_t range = message.rfind(kRange);
  const size_t to = message.rfind(kTo);
  if (!absl::StartsWith(message, kValue) || range == absl::string_view::npos ||
      to == absl::string_view::npos || to < range) {
    return std::string(message);
  }
  const absl::string_view value = message.substr(kValue.size(), range - kValue.size());
  const absl::string_view low = message.substr(range + kRange.size(), to - range - kRange.size());
  const absl::string_view high = message.substr(to + kTo.size());
  const bool is_size = absl::StrContains(type, "SIZE");
  double low_number = 0, high_number = 0;
  if (!absl::SimpleAtod(low, &low_number) || !absl::SimpleAtod(high, &high_number)) {
    return std::string(message);
  }
  std::string limits = absl::StrCat("in [", Bound(low, is_size), ", ", Bound(high, is_size), "]");
  if (high_number >= std::numeric_limits<double>::max()) {
    limits = absl::StrContains(type, "POSITIVE") ? "greater than 0"
                                                 : absl::StrCat("of at least ", Bound(low, is_size));
  }
  return absl::StrCat(Printable(value), " is not a number ", limits);
}

std::string DescribeMistake(const CLI::App& app, const CLI::Error& error) {
  // The word that was not understood belongs to the outermost command that has one left.
  const CLI::App* command = &app;
  std::string path = app.get_name();
  while (command->remaining().empty() && !command->get_subcommands().empty()) {
    command = command->get_subcommands().back();
    absl::StrAppend(&path, " ", command->get_name());
  }
  const std::vector<std::string> words = command->remaining();
  const std::vector<std::string> commands = CommandNames(*command);
  // The name of an ExtrasError is that of the command.
  const auto kind = static_cast<CLI::ExitCodes>(error.get_exit_code());
  const bool required = kind == CLI::ExitCodes::RequiredError;
  std::string text;
  if ((required || kind == CLI::ExitCodes::ExtrasError) && !words.empty()) {
    text = DescribeWord(*command, words.front());
  } else if (required && !commands.empty() && command->get_subcommands().empty()) {
    text = absl::StrCat("a command is required: ", absl::StrJoin(commands, ", "));
  } else {
    text = DescribeValue(*command, error.what());
  }
  return absl::StrCat(path, ": ", text, "\nRun '", path, " --help' for more information.\n");
}

}  // namespace tandem::cli
