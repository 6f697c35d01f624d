// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMANDS_RL_ROLES_H_
#define TANDEM_CLI_COMMANDS_RL_ROLES_H_

#include <atomic>
#include <string>

#include "cluster/server.h"
#include "worker/rl/job/rl_spec.h"
#include "worker/rl/run/rl_run.h"

namespace tandem::cli {

// The exit code of a run that was asked to stop: EX_TEMPFAIL of sysexits.h, as `tandem train` has it.
inline constexpr int kRlAskedToStop = 75;

struct RlRoleOptions {
  rl::RlRunOptions run;           // its `stop` is `stop`
  std::atomic<bool>* stop;        // SIGTERM and SIGINT set it; a second one ends the process
  std::string report;             // the JSON file of rank 0; empty: none
  cluster::ListenOptions listen;  // of the roles that serve
};

// Runs this process's part of a job that `tandem run` has started: learner, actor, replay or inference
// (TANDEM_ROLE). Returns the exit code.
int RunRlRole(const rl::RlSpec& spec, const RlRoleOptions& options);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_RL_ROLES_H_
