// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_HARNESS_PROGRAM_FLAGS_H_
#define TANDEM_BENCH_HARNESS_PROGRAM_FLAGS_H_

// The command lines of programs that measure other systems with the flags of a suite.

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace CLI {
class App;
}

namespace tandem::bench {

// Parses the command line of a program whose flags are those that `declare` adds. Returns the exit code if
// the program must end: after --help, or after it has printed an error.
std::optional<int> ParseProgramFlags(const char* description, int argc, char** argv,
                                     absl::FunctionRef<void(CLI::App*)> declare);

// Splits the comma-separated list `text`, the value of `flag`. InvalidArgument, which names the flag and
// suggests a name, if a part is none of `all`.
absl::StatusOr<std::vector<std::string>> ParseNameList(const char* flag, const std::string& text,
                                                       const std::vector<absl::string_view>& all);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_PROGRAM_FLAGS_H_
