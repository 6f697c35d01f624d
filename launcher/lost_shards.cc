// SPDX-License-Identifier: Apache-2.0
#include "launcher/lost_shards.h"

#include <algorithm>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "launcher/plan/copies.h"

namespace tandem::launcher {

LostShards FindLostShards(const cluster::Round& round, const std::vector<cluster::MemberStatus>& members) {
  LostShards result;
  const std::vector<int> shards = ShardsOnlyOn(round.absent, ServersByNode(round), FollowersOf(round));
  if (shards.empty()) return result;
  const int servers = round.WorldSize("ps");
  std::map<int, absl::Duration> remaining;  // by shard, of the longest lease
  for (const cluster::MemberStatus& member : members) {
    absl::string_view name = member.name;
    int index;
    if (member.left || !absl::ConsumePrefix(&name, "ps/") || !absl::SimpleAtoi(name, &index)) continue;
    absl::Duration& longest = remaining[index % servers];
    longest = std::max(longest, member.lease - member.silent);
  }
  for (const int shard : shards) {
    if (remaining[shard] > absl::ZeroDuration()) {
      // A lease ends when the silence is longer than the lease, not when it is equally long.
      result.look_again = std::min(result.look_again, remaining[shard] + absl::Milliseconds(1));
    } else if (result.failure.empty()) {
      const std::string nodes = absl::StrJoin(round.absent, ", ", [&round](std::string* out, int index) {
        const cluster::Node& node = round.nodes[static_cast<size_t>(index)];
        absl::StrAppend(out, "node ", node.id, " (", node.host, ")");
      });
      result.failure =
          absl::StrCat("shard ", shard, " of ", servers, " has no copy left: absent are ", nodes);
    }
  }
  return result;
}

}  // namespace tandem::launcher
