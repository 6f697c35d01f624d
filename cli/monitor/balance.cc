// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/balance.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rpc/address.h"

namespace tandem::cli {
namespace {

// Returns the number of primaries on each host that has a copy.
std::map<std::string, int> Primaries(const std::vector<ShardReport>& shards) {
  std::map<std::string, int> primaries;
  for (const ShardReport& shard : shards) {
    for (const CopyReport& copy : shard.copies) primaries.try_emplace(HostOf(copy.replica.address()), 0);
    if (shard.Primary() != nullptr) ++primaries[HostOf(shard.placement.primary().address())];
  }
  return primaries;
}

}  // namespace

std::string HostOf(absl::string_view address) {
  const absl::StatusOr<rpc::Address> parsed = rpc::ParseAddress(address);
  if (!parsed.ok()) return std::string(address);
  return parsed->is_unix() ? "127.0.0.1" : parsed->host;
}

bool IsAt(absl::string_view address, absl::string_view place) {
  return address == place || HostOf(address) == place;
}

std::vector<PlannedMove> PlanBalance(const std::vector<ShardReport>& shards) {
  std::map<std::string, int> primaries = Primaries(shards);
  std::set<uint32_t> moved;
  std::vector<PlannedMove> moves;
  while (true) {
    const ShardReport* best = nullptr;
    const tandem::v1::Replica* best_to = nullptr;
    int most = 1;
    for (const ShardReport& shard : shards) {
      if (shard.Primary() == nullptr || moved.contains(shard.shard)) continue;
      const int here = primaries[HostOf(shard.placement.primary().address())];
      for (const tandem::v1::Replica& follower : shard.placement.in_sync()) {
        const int difference = here - primaries[HostOf(follower.address())];
        if (difference <= most) continue;
        most = difference;
        best = &shard;
        best_to = &follower;
      }
    }
    if (best == nullptr) return moves;
    moves.push_back({.shard = best->shard, .from = best->placement.primary(), .to = *best_to});
    --primaries[HostOf(moves.back().from.address())];
    ++primaries[HostOf(moves.back().to.address())];
    moved.insert(best->shard);
  }
}

std::string HostsToText(const std::vector<ShardReport>& shards, const std::vector<PlannedMove>& moves) {
  const std::map<std::string, int> before = Primaries(shards);
  std::map<std::string, int> after = before;
  for (const PlannedMove& move : moves) {
    --after[HostOf(move.from.address())];
    ++after[HostOf(move.to.address())];
  }
  std::string text;
  for (const auto& [host, primaries] : before) {
    absl::StrAppend(&text, host, ": ", primaries, " primaries",
                    after[host] == primaries ? "" : absl::StrCat(", then ", after[host]), "\n");
  }
  return text;
}

}  // namespace tandem::cli
