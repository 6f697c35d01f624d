// SPDX-License-Identifier: Apache-2.0
#include "ps/client/route/connect_shard.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status.h"
#include "ps/client/route/routed_channel.h"
#include "ps/failover/placement_text.h"
#include "tandem/v1/failover.pb.h"

namespace tandem::ps {
namespace {

// Returns the addresses of the document's copies, the primary's first, and `address` if it is not among them.
std::vector<std::string> AddressesOf(const v1::ShardPlacement& placement, const std::string& address) {
  std::vector<std::string> addresses;
  const auto add = [&addresses](const std::string& one) {
    if (!one.empty() && std::find(addresses.begin(), addresses.end(), one) == addresses.end()) {
      addresses.push_back(one);
    }
  };
  add(placement.primary().address());
  for (const v1::Replica& follower : placement.in_sync()) add(follower.address());
  add(address);
  return addresses;
}

absl::StatusOr<v1::ShardPlacement> ReadPlacement(
    const std::function<absl::StatusOr<std::string>(const std::string& key, absl::Duration timeout)>& read,
    uint32_t shard, absl::Duration timeout) {
  const std::string key = PlacementKey(shard);
  TANDEM_ASSIGN_OR_RETURN(const std::string text, read(key, timeout));
  return PlacementFromText(key, text);
}

}  // namespace

absl::StatusOr<ShardConnection> ConnectShard(const ConnectShardOptions& options) {
  v1::ShardPlacement placement;
  ShardConnection connection;
  RoutedChannelOptions routed{.shard = options.shard};
  if (options.read != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(placement, ReadPlacement(options.read, options.shard, options.timeout));
    routed.locate = [read = options.read, shard = options.shard](absl::Duration timeout) {
      return ReadPlacement(read, shard, timeout);
    };
    connection.followers = placement.version() > 0;
  }
  if (!connection.followers) {
    TANDEM_ASSIGN_OR_RETURN(connection.channel, rpc::Connect(options.address, options.connect));
    if (options.read != nullptr) return connection;
    v1::ReplicaStatus status;
    const absl::Status asked =
        rpc::CallProto(*connection.channel, "/tandem.v1.Failover/GetPlacement", v1::GetPlacementRequest(),
                       &status, {.timeout = options.timeout});
    if (!asked.ok() || status.role() == v1::REPLICA_ROLE_UNSPECIFIED) return connection;
    connection.followers = true;
    placement = std::move(*status.mutable_placement());
  }
  routed.addresses = AddressesOf(placement, options.address);
  routed.connect.transport = options.connect.transport;
  routed.connect.channel = options.connect.channel;
  TANDEM_ASSIGN_OR_RETURN(connection.channel, ConnectRouted(std::move(routed)));
  return connection;
}

}  // namespace tandem::ps
