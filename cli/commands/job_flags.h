// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMANDS_JOB_FLAGS_H_
#define TANDEM_CLI_COMMANDS_JOB_FLAGS_H_

// Declares the flags of commands that look at a running job. cli/monitor/find_job.h explains them.

#include "cli/monitor/find_job.h"

namespace CLI {
class App;
}

namespace tandem::cli {

// Adds --servers, --store, --rdzv-id, --job and --timeout.
void AddServersFlags(CLI::App* command, JobFlags* flags);
// Adds the same flags except --servers, for commands that concern all processes of a job.
void AddJobFlags(CLI::App* command, JobFlags* flags);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_JOB_FLAGS_H_
