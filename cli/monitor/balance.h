// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_BALANCE_H_
#define TANDEM_CLI_MONITOR_BALANCE_H_

// Decides which primaries move for `tandem ps balance` and `tandem ps drain`. Pure functions.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cli/monitor/shards.h"
#include "tandem/v1/failover.pb.h"

namespace tandem::cli {

// A hand-over of one shard.
struct PlannedMove {
  uint32_t shard = 0;
  tandem::v1::Replica from;  // the primary
  tandem::v1::Replica to;    // a follower in sync
};

// Returns the host of "host:port"; 127.0.0.1 for a unix socket.
std::string HostOf(absl::string_view address);
// Returns whether `address` is `place`, which is "host:port" or a host.
bool IsAt(absl::string_view address, absl::string_view place);

// Returns hand-overs after which the primaries are as evenly on the hosts of the copies as followers in sync
// allow. Greedy: each move takes a primary from the host that has the most to one that has at least two
// fewer. Shards without a primary that serves stay as they are.
std::vector<PlannedMove> PlanBalance(const std::vector<ShardReport>& shards);
// Returns a line for each host: how many primaries it has, and has after the moves.
std::string HostsToText(const std::vector<ShardReport>& shards, const std::vector<PlannedMove>& moves);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_BALANCE_H_
