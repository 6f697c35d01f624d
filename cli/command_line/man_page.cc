// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line/man_page.h"

#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace tandem::cli {
namespace {

// Returns text that roff prints as it is.
std::string Roff(absl::string_view text) {
  std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  std::vector<std::string> lines = absl::StrSplit(escaped, '\n');
  for (std::string& line : lines) {
    if (absl::StartsWith(line, ".") || absl::StartsWith(line, "'")) line.insert(0, "\\&");
  }
  return absl::StrJoin(lines, "\n.br\n");
}

std::string WithPeriod(absl::string_view text) {
  return absl::StrCat(text, text.empty() || absl::EndsWith(text, ".") ? "" : ".");
}

void AppendFlag(const Flag& flag, std::string* page) {
  absl::StrAppend(page, ".TP\n",
                  absl::StrJoin(flag.names, ", ", [](std::string* out, const std::string& name) {
                    absl::StrAppend(out, "\\fB", Roff(name), "\\fR");
                  }));
  if (!flag.choices.empty()) {
    absl::StrAppend(page, " ", Roff(absl::StrJoin(flag.choices, "|")));
  } else if (flag.takes_value && absl::StartsWith(flag.names.front(), "-")) {
    absl::StrAppend(page, " \\fI", Roff(flag.value), "\\fR");
  }
  absl::StrAppend(page, "\n", Roff(WithPeriod(flag.description)), "\n");
  if (!flag.default_value.empty())
    absl::StrAppend(page, Roff(absl::StrCat("Default: ", flag.default_value, ".")), "\n");
  if (!flag.variable.empty())
    absl::StrAppend(page, Roff(absl::StrCat("Variable: ", flag.variable, ".")), "\n");
}

void AppendCommand(const Command& command, std::string* page, std::map<std::string, std::string>* variables) {
  std::string synopsis = command.path;
  for (const Flag& positional : command.positionals) absl::StrAppend(&synopsis, " ", positional.name());
  absl::StrAppend(page, ".SS ", Roff(synopsis), "\n", Roff(WithPeriod(command.description)), "\n");
  for (const Flag& positional : command.positionals) AppendFlag(positional, page);
  for (const Flag& flag : command.flags) {
    if (flag.name() == "--help") continue;
    AppendFlag(flag, page);
    if (!flag.variable.empty()) (*variables)[flag.variable] = absl::StrCat(command.path, " ", flag.name());
  }
  if (!command.footer.empty())
    absl::StrAppend(page, ".PP\n", Roff(absl::StripAsciiWhitespace(command.footer)), "\n");
  for (const Command& child : command.commands) AppendCommand(child, page, variables);
}

}  // namespace

std::string ManPage(const Command& program, absl::string_view version) {
  const std::string name = program.path;
  std::string page =
      absl::StrCat(".TH ", absl::AsciiStrToUpper(name), " 1 \"\" \"", name, " ", version, "\" \"", name,
                   "\"\n.SH NAME\n", name, " \\- ", Roff(program.description), "\n.SH SYNOPSIS\n.B ", name,
                   "\n\\fICOMMAND\\fR [\\fIFLAGS\\fR] [\\fIARGUMENTS\\fR]\n", ".SH OPTIONS\n");
  for (const Flag& flag : program.flags) AppendFlag(flag, &page);
  absl::StrAppend(&page, ".SH COMMANDS\n");
  std::map<std::string, std::string> variables;
  for (const Command& command : program.commands) AppendCommand(command, &page, &variables);
  absl::StrAppend(&page, ".SH ENVIRONMENT\n.TP\n\\fBTANDEM_LOG\\fR\n",
                  Roff("The least severe messages that are logged: debug, info, warning or error."), "\n");
  for (const auto& [variable, flag] : variables) {
    absl::StrAppend(&page, ".TP\n\\fB", Roff(variable), "\\fR\n", Roff(absl::StrCat("As `", flag, "`.")),
                    "\n");
  }
  absl::StrAppend(
      &page,
      ".SH EXIT STATUS\n.TP\n0\nSuccess.\n.TP\n1\nThe command failed; the reason is on stderr.\n.TP\n2\n"
      "The command line is wrong.\n.TP\n75\n"
      "The training was asked to stop and has saved a checkpoint: start it again with --resume "
      "auto.\n.TP\n124\n"
      "A time-out of the command line has passed.\n.TP\n126, 127\n"
      "The program to run cannot be executed, or does not exist.\n.TP\n128 + N\n"
      "Signal N has ended the process that failed first, or has stopped the job.\n");
  return page;
}

}  // namespace tandem::cli
