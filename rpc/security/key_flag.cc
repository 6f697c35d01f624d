// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/key_flag.h"

#include <cstdlib>
#include <string>

#include "CLI/CLI.hpp"
#include "base/local_path.h"
#include "rpc/security/job_key.h"

namespace tandem::rpc {

void AddKeyFileFlag(CLI::App* command) {
  LocalPath(command->add_option_function<std::string>(
      "--key-file", [](const std::string& file) { ::setenv(kKeyFileVariable, file.c_str(), 1); },
      "The key that the processes of the job share [TANDEM_KEY_FILE, else TANDEM_KEY, else ~/.tandem/key]"));
}

}  // namespace tandem::rpc
