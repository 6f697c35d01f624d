// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/security_flags.h"

#include <cstdint>
#include <cstdlib>
#include <string>

#include "CLI/CLI.hpp"
#include "base/local_path.h"
#include "rpc/security/job_key.h"
#include "rpc/security/transport_security.h"

namespace tandem::rpc {

void AddSecurityFlags(CLI::App* command) {
  LocalPath(command->add_option_function<std::string>(
      "--key-file", [](const std::string& file) { ::setenv(kKeyFileVariable, file.c_str(), 1); },
      "The key that the processes of the job share [TANDEM_KEY_FILE, else TANDEM_KEY, else ~/.tandem/key]"));
  command->add_flag_function(
      "--trusted-network", [](int64_t) { ::setenv(kTrustedNetworkVariable, "1", 1); },
      "Neither encrypt TCP connections nor ask who connects; all processes of the job need it "
      "[TANDEM_TRUSTED_NETWORK=1]");
}

}  // namespace tandem::rpc
