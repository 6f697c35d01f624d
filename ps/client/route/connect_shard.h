// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_ROUTE_CONNECT_SHARD_H_
#define TANDEM_PS_CLIENT_ROUTE_CONNECT_SHARD_H_

// Connects a client to one parameter server of its job, whether that has followers or not.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/channel.h"
#include "rpc/connect.h"

namespace tandem::ps {

struct ConnectShardOptions {
  uint32_t shard = 0;
  // The address of the server, or of a copy of its shard.
  std::string address;
  // Returns the value of a key of the job's store, "" if there is none; gives up after about `timeout`. Kept
  // by the channel, which calls it on a thread of its own while it looks for a primary. Null: there is no
  // store, and the server itself is asked whether it has followers, which needs another call.
  std::function<absl::StatusOr<std::string>(const std::string& key, absl::Duration timeout)> read;
  absl::Duration timeout = absl::Seconds(10);  // of the calls that this function makes
  rpc::ConnectOptions connect;
};

struct ShardConnection {
  std::unique_ptr<rpc::Channel> channel;
  // The server has followers: the channel follows the primary (ps/client/route/routed_channel.h).
  bool followers = false;
};

// Blocks like rpc::Connect, and for the calls that find out whether the server has followers. Errors are
// those of rpc::Connect, of the store, and DataLoss if the shard's placement document is damaged. A server
// that does not answer the question is taken for one without followers, so that the caller's first call tells
// what is wrong.
absl::StatusOr<ShardConnection> ConnectShard(const ConnectShardOptions& options);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_ROUTE_CONNECT_SHARD_H_
