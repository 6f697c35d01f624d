// SPDX-License-Identifier: Apache-2.0
#include "launcher/round_work.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace tandem::launcher {

using cluster::Node;
using cluster::Round;

bool HasWork(const Round& round) {
  return absl::c_any_of(round.nodes, [](const Node& node) { return node.has_work; });
}

std::vector<std::string> OtherNodesWithWork(const Round& round) {
  std::vector<std::string> ids;
  for (int i = 0; i < static_cast<int>(round.nodes.size()); ++i) {
    const Node& node = round.nodes[static_cast<size_t>(i)];
    if (i != round.group_rank && node.has_work && !absl::c_linear_search(round.absent, i)) {
      ids.push_back(node.id);
    }
  }
  return ids;
}

std::string AbsentNodesWithWork(const Round& round) {
  std::string names;
  for (const int index : round.absent) {
    const Node& node = round.nodes[static_cast<size_t>(index)];
    if (node.has_work)
      absl::StrAppend(&names, names.empty() ? "" : ", ", "node ", node.id, " (", node.host, ")");
  }
  return names;
}

}  // namespace tandem::launcher
