// SPDX-License-Identifier: Apache-2.0
#include "base/command_context.h"

#include <cstdio>

namespace tandem {

int Report(const std::string& command, const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "tandem %s: %s\n", command.c_str(), std::string(status.message()).c_str());
  return 1;
}

}  // namespace tandem
