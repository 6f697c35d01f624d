// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SECURITY_SECURITY_FLAGS_H_
#define TANDEM_RPC_SECURITY_SECURITY_FLAGS_H_

namespace CLI {
class App;
}

namespace tandem::rpc {

// Adds `--key-file FILE`, `--tls-cert`, `--tls-key`, `--tls-ca` and `--trusted-network` to a command that
// starts or reaches servers. They set TANDEM_KEY_FILE, TANDEM_TLS_CERT, TANDEM_TLS_KEY, TANDEM_TLS_CA and
// TANDEM_TRUSTED_NETWORK in this process when the command line is parsed, before other threads start.
// Processes that it starts inherit them.
void AddSecurityFlags(CLI::App* command);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_SECURITY_SECURITY_FLAGS_H_
