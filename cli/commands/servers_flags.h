#ifndef TANDEM_CLI_COMMANDS_SERVERS_FLAGS_H_
#define TANDEM_CLI_COMMANDS_SERVERS_FLAGS_H_

// The flags of commands that ask a running job (cli/monitor/find_servers.h says what they mean).

#include "cli/monitor/find_servers.h"

namespace CLI {
class App;
}

namespace tandem::cli {

// Adds --servers, --store, --rdzv-id, --job and --timeout.
void AddServersFlags(CLI::App* command, ServersFlags* flags);
// The same without --servers, for what concerns all processes of a job.
void AddJobFlags(CLI::App* command, ServersFlags* flags);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_SERVERS_FLAGS_H_
