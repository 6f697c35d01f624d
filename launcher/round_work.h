// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_ROUND_WORK_H_
#define TANDEM_LAUNCHER_ROUND_WORK_H_

// Tells which nodes of a round have processes that end by themselves, so that the job waits for them. `plan`
// is this node's, which says which of its roles serve; roles that it does not have are taken for default
// ones.

#include <string>
#include <vector>

#include "cluster/rendezvous/rendezvous.h"
#include "launcher/plan/launch_plan.h"

namespace tandem::launcher {

// Returns whether the node has processes that end by themselves. A replaceable node has none.
bool HasWork(const cluster::Node& node, const LaunchPlan& plan);
// Returns whether some node of the round has processes that end by themselves.
bool HasWork(const cluster::Round& round, const LaunchPlan& plan);
// Returns the ids of the other nodes of the round that have processes that end by themselves.
std::vector<std::string> OtherNodesWithWork(const cluster::Round& round, const LaunchPlan& plan);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_ROUND_WORK_H_
