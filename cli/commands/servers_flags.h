#ifndef TANDEM_CLI_COMMANDS_SERVERS_FLAGS_H_
#define TANDEM_CLI_COMMANDS_SERVERS_FLAGS_H_

// Declares the flags of commands that look at a running job. cli/monitor/find_servers.h explains them.

#include "cli/monitor/find_servers.h"

namespace CLI {
class App;
}

namespace tandem::cli {

// Adds --servers, --store, --rdzv-id, --job and --timeout.
void AddServersFlags(CLI::App* command, ServersFlags* flags);
// Adds the same flags except --servers, for commands that concern all processes of a job.
void AddJobFlags(CLI::App* command, ServersFlags* flags);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_SERVERS_FLAGS_H_
