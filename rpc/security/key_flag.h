// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SECURITY_KEY_FLAG_H_
#define TANDEM_RPC_SECURITY_KEY_FLAG_H_

namespace CLI {
class App;
}

namespace tandem::rpc {

// Adds `--key-file FILE` to a command that starts or reaches servers. The flag sets TANDEM_KEY_FILE in this
// process when the command line is parsed, before other threads start.
void AddKeyFileFlag(CLI::App* command);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_SECURITY_KEY_FLAG_H_
