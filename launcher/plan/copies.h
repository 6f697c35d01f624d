// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PLAN_COPIES_H_
#define TANDEM_LAUNCHER_PLAN_COPIES_H_

// Divides the copies of the parameter servers' shards among the nodes of a round, so that the copies of one
// shard are on different nodes. Pure functions: each launcher comes to the same division.

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cluster/rendezvous/rendezvous.h"

namespace tandem::launcher {

// Under this name a node tells the rendezvous how many followers it starts. It is no name that a role can
// have, so the processes of the role "ps" stay the servers without their followers.
inline constexpr char kFollowersRole[] = "ps followers";

// The exit code by which a parameter server says that it has handed over to a follower, could not become one
// itself, and shall be started again (EX_TEMPFAIL of sysexits.h). With 0 it has left its shard for good.
inline constexpr int kExitToComeBack = 75;

// The copy of a shard that a process holds. Copy 0 has a head start to become the primary.
struct CopyPlace {
  int shard = 0;
  int copy = 0;
  friend bool operator==(const CopyPlace&, const CopyPlace&) = default;
};

// Returns InvalidArgument for numbers of followers and copies, or a log, that exclude each other. `prefix`
// begins the names of the flags in its message: "--ps-" for `tandem run`, "--" for `tandem ps`.
absl::Status CheckFollowerFlags(absl::string_view prefix, int followers, int min_copies, bool log);

// Returns the number of servers on each node of the round, without followers.
std::vector<int> ServersByNode(const cluster::Round& round);
// Returns the number of followers of each shard of the round; 0 if it has no servers.
int FollowersOf(const cluster::Round& round);
// Returns FailedPrecondition, naming the node, unless all nodes that have servers have the same number of
// followers for each.
absl::Status CheckFollowers(const cluster::Round& round);

// Returns the place of process `local_rank` of the role "ps" on `node`. If the node has n servers, its first
// n processes hold copy 0 of the shards that the order of the nodes gives it. The next n hold copy 1 of other
// shards, and so on. Requires a process that exists.
CopyPlace PlaceCopy(const std::vector<int>& servers_by_node, int node, int local_rank);

// Returns the shards of which several copies are on one node, in ascending order. It is empty if no node has
// more than 1/(followers + 1) of all servers.
std::vector<int> ShardsTwiceOnANode(const std::vector<int>& servers_by_node, int followers);

// Returns the shards of which all copies are on these nodes, in ascending order.
std::vector<int> ShardsOnlyOn(const std::vector<int>& nodes, const std::vector<int>& servers_by_node,
                              int followers);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PLAN_COPIES_H_
