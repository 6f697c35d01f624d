// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PLAN_CLUSTER_FILE_H_
#define TANDEM_LAUNCHER_PLAN_CLUSTER_FILE_H_

// Reads a cluster file (--cluster), which describes the roles of a job:
//
//   max_restarts: 3
//   environment: {OMP_NUM_THREADS: 2}
//   roles:
//     ps: {count: 2, followers: 1}
//     learner: {count: 1, program: ./learner --game pong, bind: core}
//     actor: {count: 8, program: [./actor, --game, pong], restart: alone, restart_limit: 100}

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/plan/launch_plan.h"

namespace tandem::launcher {

// Returns the plan of a role for which nothing else is given: one process; ps, replay and actor serve; actors
// are restarted alone.
RolePlan DefaultRole(absl::string_view name);

// Returns InvalidArgument unless `name` consists of 1 to 64 letters, digits, '-' and '_'.
absl::Status CheckRoleName(absl::string_view name);

// Reads `text`, the contents of `file_name`, into `plan`. Returns InvalidArgument with one line for every
// mistake: file, line, field, what was expected, and which field may have been meant. `plan` may then be
// partly changed.
absl::Status ReadClusterFile(absl::string_view text, const std::string& file_name, LaunchPlan* plan);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PLAN_CLUSTER_FILE_H_
