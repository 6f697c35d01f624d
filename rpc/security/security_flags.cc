// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/security_flags.h"

#include <cstdint>
#include <cstdlib>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/local_path.h"
#include "rpc/security/certificate_files.h"
#include "rpc/security/job_key.h"
#include "rpc/security/transport_security.h"

namespace tandem::rpc {

void AddSecurityFlags(CLI::App* command) {
  LocalPath(command->add_option_function<std::string>(
      "--key-file", [](const std::string& file) { ::setenv(kKeyFileVariable, file.c_str(), 1); },
      "The key that the processes of the job share [TANDEM_KEY_FILE, else TANDEM_KEY, else ~/.tandem/key]"));
  const auto file = [command](const char* flag, const char* variable, const char* text) {
    LocalPath(command->add_option_function<std::string>(
        flag, [variable](const std::string& path) { ::setenv(variable, path.c_str(), 1); },
        absl::StrCat(text, " [", variable, "]")));
  };
  file("--tls-cert", kTlsCertVariable,
       "This process's certificate of a PKI, read again when it changes, in place of one that is derived "
       "from the key");
  file("--tls-key", kTlsKeyVariable, "Its private key");
  file("--tls-ca", kTlsCaVariable, "The authorities whose certificates are accepted");
  command->add_flag_function(
      "--trusted-network", [](int64_t) { ::setenv(kTrustedNetworkVariable, "1", 1); },
      "Neither encrypt TCP connections nor ask who connects; all processes of the job need it "
      "[TANDEM_TRUSTED_NETWORK=1]");
}

}  // namespace tandem::rpc
