// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line/completion.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace tandem::cli {
namespace {

void ForEachCommand(const Command& command, const std::function<void(const Command&)>& function) {
  function(command);
  for (const Command& child : command.commands) ForEachCommand(child, function);
}

// Returns the names of a flag to offer. "--rdzv_id" is torchrun's other spelling of "--rdzv-id".
std::vector<std::string> Offered(const Flag& flag) {
  std::vector<std::string> names;
  for (const std::string& name : flag.names) {
    const std::string hyphens = absl::StrReplaceAll(name, {{"_", "-"}});
    const bool twin =
        hyphens != name && std::find(flag.names.begin(), flag.names.end(), hyphens) != flag.names.end();
    if (absl::StartsWith(name, "--") && !twin) names.push_back(name);
  }
  return names;
}

std::string ShellQuoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// Returns a pattern for `case` that matches each name of the flag after the command: "a b --c"|"a b -d".
std::string Pattern(const Command& command, const Flag& flag) {
  return absl::StrJoin(flag.names, "|", [&](std::string* out, const std::string& name) {
    absl::StrAppend(out, "\"", command.path, " ", name, "\"");
  });
}

// Returns the lines of `case "$command $word"` that follow the words before the cursor. Both shells read
// them.
std::string Walk(const Command& program) {
  std::string commands, values;
  ForEachCommand(program, [&](const Command& command) {
    for (const Command& child : command.commands) {
      absl::StrAppend(&commands, commands.empty() ? "" : "|", "\"", child.path, "\"");
    }
    for (const Flag& flag : command.flags) {
      if (flag.takes_value) absl::StrAppend(&values, values.empty() ? "" : "|", Pattern(command, flag));
    }
  });
  // The first word after `tandem run` that is no flag begins another program's command line.
  const std::string run = absl::StrCat(program.path, " run ");
  return absl::StrCat("    case \"$command $word\" in\n      ", commands,
                      ") command=\"$command $word\";;\n      ", values, ") value=\"$word\";;\n      \"", run,
                      "--\") program=1; break;;\n      \"", run, "-\"*) ;;\n      \"", run,
                      "\"*) program=1; break;;\n    esac\n");
}

// Returns `case` lines which run `set` (a statement) for each flag with a fixed set of values.
std::string ValueCases(const Command& program,
                       const std::function<std::string(const std::vector<std::string>&)>& set) {
  std::string cases;
  ForEachCommand(program, [&](const Command& command) {
    for (const Flag& flag : command.flags) {
      if (flag.choices.empty() || !flag.takes_value) continue;
      absl::StrAppend(&cases, "      ", Pattern(command, flag), ") ", set(flag.choices), ";;\n");
    }
  });
  return absl::StrCat(cases, "      *) ;;\n");
}

// Returns the first sentence of a description, for lists.
std::string Brief(absl::string_view text) {
  const size_t end = std::min(text.find('\n'), text.find(". "));
  return std::string(text.substr(0, end));
}

}  // namespace

std::string BashCompletion(const Command& program) {
  const std::string name = program.path;
  std::string offers;
  ForEachCommand(program, [&](const Command& command) {
    std::vector<std::string> flags, commands;
    for (const Flag& flag : command.flags) {
      for (const std::string& offered : Offered(flag)) flags.push_back(offered);
    }
    for (const Command& child : command.commands) commands.push_back(child.name());
    absl::StrAppend(&offers, "    \"", command.path, "\") flags=", ShellQuoted(absl::StrJoin(flags, " ")),
                    "; commands=", ShellQuoted(absl::StrJoin(commands, " ")), ";;\n");
  });
  const std::string values = ValueCases(program, [](const std::vector<std::string>& choices) {
    return absl::StrCat("values=", ShellQuoted(absl::StrJoin(choices, " ")));
  });
  return absl::StrCat("# bash completion for ", name, ", printed by `", name,
                      " completion bash`\n"
                      "_",
                      name,
                      "() {\n"
                      "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" command=",
                      name,
                      " value= program= values= flags= commands= word i\n"
                      "  COMPREPLY=()\n"
                      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
                      "    word=\"${COMP_WORDS[i]}\"\n"
                      // bash splits --flag=value into three words.
                      "    if [[ $word == = ]]; then continue; fi\n"
                      "    if [[ -n $value ]]; then value=; continue; fi\n",
                      Walk(program),
                      "  done\n"
                      "  if [[ -n $program ]]; then return; fi\n"
                      "  if [[ $cur == = ]]; then cur=; fi\n"
                      "  if [[ -n $value ]]; then\n"
                      "    case \"$command $value\" in\n",
                      values,
                      "    esac\n"
                      "    COMPREPLY=($(compgen -W \"$values\" -- \"$cur\"))\n"
                      "    return\n"
                      "  fi\n"
                      "  case \"$command\" in\n",
                      offers,
                      "  esac\n"
                      "  if [[ $cur == -* ]]; then\n"
                      "    COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n"
                      "  else\n"
                      "    COMPREPLY=($(compgen -W \"$commands\" -- \"$cur\"))\n"
                      "  fi\n"
                      "}\n"
                      "complete -o default -F _",
                      name, " ", name, "\n");
}

std::string ZshCompletion(const Command& program) {
  const std::string name = program.path;
  const auto entry = [](absl::string_view word, absl::string_view description) {
    return ShellQuoted(absl::StrCat(absl::StrReplaceAll(word, {{":", "\\:"}}), ":", Brief(description)));
  };
  std::string offers;
  ForEachCommand(program, [&](const Command& command) {
    std::vector<std::string> flags, commands;
    for (const Flag& flag : command.flags) {
      for (const std::string& offered : Offered(flag)) flags.push_back(entry(offered, flag.description));
    }
    for (const Command& child : command.commands) {
      commands.push_back(entry(child.name(), child.description));
    }
    absl::StrAppend(&offers, "    \"", command.path, "\")\n      flags=(", absl::StrJoin(flags, "\n        "),
                    ")\n      commands=(", absl::StrJoin(commands, "\n        "), ");;\n");
  });
  const std::string values = ValueCases(program, [](const std::vector<std::string>& choices) {
    return absl::StrCat("values=(",
                        absl::StrJoin(choices, " ",
                                      [](std::string* out, const std::string& choice) {
                                        absl::StrAppend(out, ShellQuoted(choice));
                                      }),
                        ")");
  });
  return absl::StrCat("#compdef ", name, "\n# zsh completion for ", name, ", printed by `", name,
                      " completion zsh`\n_", name,
                      "() {\n"
                      "  local command=",
                      name,
                      " value= program= word i\n"
                      "  local -a values flags commands\n"
                      "  for ((i = 2; i < CURRENT; ++i)); do\n"
                      "    word=\"${words[i]}\"\n"
                      "    if [[ -n $value ]]; then value=; continue; fi\n",
                      Walk(program),
                      "  done\n"
                      "  if [[ -n $program ]]; then _files; return; fi\n"
                      "  if [[ $PREFIX == --*=* ]]; then value=\"${PREFIX%%=*}\"; compset -P '*='; fi\n"
                      "  if [[ -n $value ]]; then\n"
                      "    case \"$command $value\" in\n",
                      values,
                      "    esac\n"
                      "    if (( $#values )); then compadd -a values; else _files; fi\n"
                      "    return\n"
                      "  fi\n"
                      "  case \"$command\" in\n",
                      offers,
                      "  esac\n"
                      "  if [[ $PREFIX == -* ]]; then _describe -t flags flag flags\n"
                      "  elif (( $#commands )); then _describe -t commands command commands\n"
                      "  else _files; fi\n"
                      "}\n"
                      "if [[ $funcstack[1] == _",
                      name, " ]]; then _", name, " \"$@\"; else compdef _", name, " ", name, "; fi\n");
}

}  // namespace tandem::cli
