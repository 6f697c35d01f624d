// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_LOST_SHARDS_H_
#define TANDEM_LAUNCHER_LOST_SHARDS_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cluster/membership/membership.h"
#include "cluster/rendezvous/rendezvous.h"

namespace tandem::launcher {

// The result of FindLostShards. A plain value.
struct LostShards {
  std::string failure;  // names a shard that has no copy left, and the absent nodes; "": there is none
  // When to look again, from now: until then a copy of a shard may live.
  absl::Duration look_again = absl::InfiniteDuration();
};

// Finds a shard of the parameter servers whose copies are all on absent nodes of the round. A copy that was
// started by hand is a member as well, so a shard is lost only if the leases of all its members have run out.
// If some process of the shard is left on another node, that process reports the loss of the shard itself.
LostShards FindLostShards(const cluster::Round& round, const std::vector<cluster::MemberStatus>& members);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_LOST_SHARDS_H_
