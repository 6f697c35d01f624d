// SPDX-License-Identifier: Apache-2.0
#include "launcher/round_work.h"

#include "absl/algorithm/container.h"
#include "launcher/plan/cluster_file.h"

namespace tandem::launcher {

using cluster::Node;
using cluster::Round;

bool HasWork(const Node& node, const LaunchPlan& plan) {
  if (node.replaceable) return false;
  for (const auto& [name, count] : node.processes) {
    const RolePlan* mine = plan.Find(name);
    if (count > 0 && !(mine != nullptr ? mine->serves : DefaultRole(name).serves)) return true;
  }
  return false;
}

bool HasWork(const Round& round, const LaunchPlan& plan) {
  return absl::c_any_of(round.nodes, [&](const Node& node) { return HasWork(node, plan); });
}

std::vector<std::string> OtherNodesWithWork(const Round& round, const LaunchPlan& plan) {
  std::vector<std::string> ids;
  for (size_t i = 0; i < round.nodes.size(); ++i) {
    if (i != static_cast<size_t>(round.group_rank) && HasWork(round.nodes[i], plan)) {
      ids.push_back(round.nodes[i].id);
    }
  }
  return ids;
}

}  // namespace tandem::launcher
