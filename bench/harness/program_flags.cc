// SPDX-License-Identifier: Apache-2.0
#include "bench/harness/program_flags.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/suggest.h"

namespace tandem::bench {

std::optional<int> ParseProgramFlags(const char* description, int argc, char** argv,
                                     absl::FunctionRef<void(CLI::App*)> declare) {
  CLI::App app{description};
  declare(&app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<std::string>> ParseNameList(const char* flag, const std::string& text,
                                                       const std::vector<absl::string_view>& all) {
  const std::vector<std::string> names = absl::StrSplit(text, ',');
  for (const std::string& name : names) {
    if (std::find(all.begin(), all.end(), name) == all.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, ": there is no '", name, "'", DidYouMean(name, all)));
    }
  }
  return names;
}

}  // namespace tandem::bench
