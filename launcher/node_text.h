// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_NODE_TEXT_H_
#define TANDEM_LAUNCHER_NODE_TEXT_H_

// Names nodes, and describes them and their processes for the launcher's messages.

#include <string>

#include "cluster/rendezvous/rendezvous.h"
#include "launcher/plan/launch_plan.h"

namespace tandem::launcher {

// Returns an id for a node on `host` that no other one has or had.
std::string FreshNodeId(const std::string& host);
// Returns the processes of the plan: "2 parameter servers, 4 workers".
std::string CountsText(const LaunchPlan& plan);
// Returns the processes that a node has announced: "1 parameter server, 1 follower".
std::string NodeProcessesText(const cluster::Node& node);
// Returns what has happened to `node` of the running round, what it had, and how it comes back.
std::string ChangeText(const cluster::NodeChange& change, const cluster::Node& node);
// Returns this node's place in the round: "node 1 of 2 in round 3: worker/4 to 7 of 8".
std::string PlaceText(const LaunchPlan& plan, const cluster::Round& round);
// Returns a warning if the death of one machine loses all or several copies of a shard; else "".
std::string CopiesWarning(const cluster::Round& round);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_NODE_TEXT_H_
