#ifndef TANDEM_LAUNCHER_PLAN_CLUSTER_FILE_H_
#define TANDEM_LAUNCHER_PLAN_CLUSTER_FILE_H_

// A job of many roles in one file:
//
//   max_restarts: 3
//   environment: {OMP_NUM_THREADS: 2}
//   roles:
//     ps: {count: 2}
//     learner: {count: 1, program: ./learner --game pong, bind: core}
//     actor: {count: 8, program: [./actor, --game, pong], restart: alone, restart_limit: 100}

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/plan/launch_plan.h"

namespace tandem::launcher {

// What roles are when nobody says otherwise: ps, replay and actor serve, actors come back alone.
RolePlan DefaultRole(absl::string_view name);

// Whether a role may have this name: at most 64 letters, digits, '-' and '_'.
absl::Status CheckRoleName(absl::string_view name);

// Reads `text` into `plan`. InvalidArgument has a line for every mistake: file, line, field, what was
// expected and which field may have been meant.
absl::Status ReadClusterFile(absl::string_view text, const std::string& file_name, LaunchPlan* plan);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PLAN_CLUSTER_FILE_H_
