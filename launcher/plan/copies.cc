// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/copies.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace tandem::launcher {
namespace {

int CountOf(const cluster::Node& node, const char* role) {
  const auto found = node.processes.find(role);
  return found == node.processes.end() ? 0 : found->second;
}

}  // namespace

absl::Status CheckFollowerFlags(absl::string_view prefix, int followers, int min_copies, bool log) {
  if (min_copies > followers + 1) {
    return absl::InvalidArgumentError(absl::StrCat(prefix, "min-copies ", min_copies, " needs ",
                                                   min_copies - 1, " or more followers of each server, not ",
                                                   followers, "; give ", prefix, "followers ",
                                                   min_copies - 1));
  }
  if (followers > 0 && log) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--wal-dir and ", prefix,
        "followers exclude each other: a server keeps its pushes either in a log on disk or at its "
        "followers; choose one"));
  }
  return absl::OkStatus();
}

std::vector<int> ServersByNode(const cluster::Round& round) {
  std::vector<int> servers;
  for (const cluster::Node& node : round.nodes) servers.push_back(CountOf(node, "ps"));
  return servers;
}

int FollowersOf(const cluster::Round& round) {
  const int servers = round.WorldSize("ps");
  return servers == 0 ? 0 : round.WorldSize(kFollowersRole) / servers;
}

absl::Status CheckFollowers(const cluster::Round& round) {
  const int followers = FollowersOf(round);
  for (const cluster::Node& node : round.nodes) {
    const int servers = CountOf(node, "ps");
    if (CountOf(node, kFollowersRole) == servers * followers) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "node ", node.id, " (", node.host, ") has ", servers, " parameter servers with ",
        CountOf(node, kFollowersRole) / std::max(servers, 1),
        " followers each, and another node has another number; give the same --ps-followers on all "
        "nodes that have --ps"));
  }
  return absl::OkStatus();
}

CopyPlace PlaceCopy(const std::vector<int>& servers_by_node, int node, int local_rank) {
  const auto first = servers_by_node.begin();
  const int here = servers_by_node[static_cast<size_t>(node)];
  const int before = std::accumulate(first, first + node, 0);
  const int64_t all = std::accumulate(first, servers_by_node.end(), int64_t{0});
  // On a circle of all shards each node has an arc. A turn by the longest arc takes each shard out of its
  // node, and further turns take it to other nodes again, as long as the turns stay below one round.
  const int64_t turn = *std::max_element(first, servers_by_node.end());
  const int copy = local_rank / here;
  return {.shard = static_cast<int>((before + local_rank % here + copy * turn) % all), .copy = copy};
}

std::vector<int> ShardsTwiceOnANode(const std::vector<int>& servers_by_node, int followers) {
  std::set<int> twice;
  for (size_t node = 0; node < servers_by_node.size(); ++node) {
    std::set<int> here;
    for (int i = 0; i < servers_by_node[node] * (followers + 1); ++i) {
      const int shard = PlaceCopy(servers_by_node, static_cast<int>(node), i).shard;
      if (!here.insert(shard).second) twice.insert(shard);
    }
  }
  return {twice.begin(), twice.end()};
}

std::vector<int> ShardsOnlyOn(const std::vector<int>& nodes, const std::vector<int>& servers_by_node,
                              int followers) {
  std::set<int> only, elsewhere;
  for (size_t node = 0; node < servers_by_node.size(); ++node) {
    const bool there = absl::c_linear_search(nodes, static_cast<int>(node));
    for (int i = 0; i < servers_by_node[node] * (followers + 1); ++i) {
      const int shard = PlaceCopy(servers_by_node, static_cast<int>(node), i).shard;
      (there ? only : elsewhere).insert(shard);
    }
  }
  std::vector<int> shards;
  absl::c_set_difference(only, elsewhere, std::back_inserter(shards));
  return shards;
}

}  // namespace tandem::launcher
