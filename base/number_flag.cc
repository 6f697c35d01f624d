// SPDX-License-Identifier: Apache-2.0
#include "base/number_flag.h"

#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace tandem {

CLI::Option* LimitTo(const Range& range, CLI::Option* option) {
  const std::string limits = range.ToString();
  return option->check(CLI::Validator(
      [range, limits](const std::string& text) -> std::string {
        double value = 0;
        // A text that is no number is the parser's to report.
        if (!absl::SimpleAtod(text, &value) || range.Holds(value)) return "";
        return absl::StrCat(Printable(text), " is not a number ", limits);
      },
      limits));
}

}  // namespace tandem
