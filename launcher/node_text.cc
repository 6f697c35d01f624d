// SPDX-License-Identifier: Apache-2.0
#include "launcher/node_text.h"

#include <unistd.h>

#include <random>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/plan/copies.h"

namespace tandem::launcher {

using cluster::Round;

std::string FreshNodeId(const std::string& host) {
  std::random_device random;
  return absl::StrCat(host, "-", ::getpid(), "-", absl::Hex(random(), absl::kZeroPad8));
}

std::string CountsText(const LaunchPlan& plan) {
  std::vector<std::string> parts;
  for (const RolePlan& role : plan.roles) {
    const std::string& name = role.name;
    const std::string kind = name == "ps" ? "parameter server" : name;
    const bool many =
        role.count > 1 && (name == "ps" || name == "worker" || name == "learner" || name == "actor");
    parts.push_back(absl::StrCat(
        role.count, " ", kind, many ? "s" : "",
        role.followers > 0 ? absl::StrCat(" and ", role.count * role.followers, " followers") : ""));
  }
  return absl::StrJoin(parts, ", ");
}

std::string PlaceText(const LaunchPlan& plan, const Round& round) {
  std::vector<std::string> parts;
  for (const RolePlan& role : plan.roles) {
    const int first = round.FirstRank(role.name);
    parts.push_back(absl::StrCat(role.name, "/", first,
                                 role.count > 1 ? absl::StrCat(" to ", first + role.count - 1) : "", " of ",
                                 round.WorldSize(role.name)));
  }
  return absl::StrCat("node ", round.group_rank, " of ", round.nodes.size(), " in round ", round.epoch, ": ",
                      absl::StrJoin(parts, ", "));
}

std::string CopiesWarning(const Round& round) {
  const int followers = FollowersOf(round);
  const std::vector<int> servers = ServersByNode(round);
  if (followers == 0) return "";
  if (absl::c_count_if(servers, [](int count) { return count > 0; }) == 1) {
    return "warning: all copies of the parameter servers' tables are on one machine, whose death loses them";
  }
  const std::vector<int> twice = ShardsTwiceOnANode(servers, followers);
  if (twice.empty()) return "";
  return absl::StrCat(
      "warning: several copies of shard ", absl::StrJoin(twice, ", "),
      " are on one node, whose death loses them; copies are on different nodes if no node has "
      "more than 1/",
      followers + 1, " of all parameter servers");
}

std::string NodeProcessesText(const cluster::Node& node) {
  std::vector<std::string> parts;
  for (const auto& [role, count] : node.processes) {
    if (count == 0) continue;
    const std::string kind = role == "ps" ? "parameter server" : role == kFollowersRole ? "follower" : role;
    parts.push_back(absl::StrCat(count, " ", kind, count > 1 ? "s" : ""));
  }
  return parts.empty() ? "no processes" : absl::StrJoin(parts, ", ");
}

std::string ChangeText(const cluster::NodeChange& change, const cluster::Node& node) {
  if (!change.absent) return absl::StrCat(change.text, ", with ", NodeProcessesText(node));
  return absl::StrCat(change.text, absl::EndsWith(change.text, "?") ? " It had " : "; it had ",
                      NodeProcessesText(node),
                      "; the round goes on without it. Its launcher takes its place again if it is started "
                      "with the same command",
                      node.has_work ? ", and the job does not end before its processes have finished" : "");
}

}  // namespace tandem::launcher
