// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMAND_LINE_MISTAKES_H_
#define TANDEM_CLI_COMMAND_LINE_MISTAKES_H_

#include <string>

#include "absl/strings/string_view.h"

namespace CLI {
class App;
class Error;
}  // namespace CLI

namespace tandem::cli {

// Returns the text for a command line that `app` has refused with `error`: the command, the word that is
// wrong, the nearest correct one, and where to read more. It ends with a newline. `app` is the program after
// parsing.
std::string DescribeMistake(const CLI::App& app, const CLI::Error& error);

// Returns CLI11's "Value 0 not in range 0.000000 to 179...368.000000" as LimitTo (base/number_flag.h) writes
// it: "0 is not a number greater than 0". Returns other texts unchanged. `type` is the option's type as CLI11
// shows it; the bounds of a size are written with units.
std::string WithReadableRange(absl::string_view message, absl::string_view type);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMAND_LINE_MISTAKES_H_
