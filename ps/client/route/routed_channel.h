// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_ROUTE_ROUTED_CHANNEL_H_
#define TANDEM_PS_CLIENT_ROUTE_ROUTED_CHANNEL_H_

// Opens a channel to a shard that has followers. Its calls go to the process that is the shard's primary, and
// follow it when another copy takes over (docs/durability.md).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/channel.h"
#include "rpc/connect.h"
#include "tandem/v1/failover.pb.h"

namespace tandem::rpc {
class Transport;
}  // namespace tandem::rpc

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// The options of ConnectRouted.
struct RoutedChannelOptions {
  // Index of the shard.
  uint32_t shard = 0;
  // Addresses of copies of the shard, at least one. The first one is taken for the primary until a copy says
  // otherwise; the others, and those that copies name later, are asked for the primary when it is gone.
  std::vector<std::string> addresses;
  // Returns the shard's placement document as the job's store has it, within `timeout`; Board::Read does
  // that. Called on a thread of the channel, and only while no copy has named a primary that serves. May
  // block; the channel's destructor waits for it. Null: only copies are asked.
  std::function<absl::StatusOr<v1::ShardPlacement>(absl::Duration timeout)> locate;
  // How to connect to a copy. Calls wait while a connection is made, at most `offer_timeout`.
  rpc::ConnectOptions connect = {.offer_timeout = absl::Seconds(1)};

  // Calls that any copy may answer (CopiesChannel::CallAnyCopy) go on at the primary if a follower has not
  // answered within this time, or within half of their timeout.
  absl::Duration follower_patience = absl::Milliseconds(500);

  // These replace the connections in tests: one for calls to a copy, one for questions to it. Null: as
  // `connect` says, and gRPC.
  std::function<absl::StatusOr<std::unique_ptr<rpc::Transport>>(const std::string& address)> open_transport;
  std::function<absl::StatusOr<std::unique_ptr<rpc::Channel>>(const std::string& address)> open_questions;
};

// Returns a channel to the primary of a shard. Blocks like rpc::Connect at the first address; the other
// copies may be unreachable. The channel works as rpc::Channel says, with these additions:
//
// - A call whose primary is lost is sent again, with the same bytes, to the next primary within its deadline,
//   if it is idempotent. It is lost when its connection breaks, when the process answers Unavailable (it is
//   not the primary), or when another copy has taken over, even if the old process is only stopped. An answer
//   to such a call has HadEarlierAttempts. Other calls in flight then fail with Unavailable.
// - A call that starts while there is no primary waits for one, whether it is idempotent or not. No thread
//   waits with it.
// - At the deadline of a call without a primary the error names the shard, the last primary, and what each
//   copy and the store said last.
// - While there is a primary, a call costs three uncontended locks and one allocation more than without the
//   routing. Two questions are open at copies, which answer them when the placement changes.
// - The channel is a CopiesChannel (ps/client/route/follower_reading_channel.h). A call of CallAnyCopy goes
// to
//   a follower in sync or to the primary, whichever has fewer such calls under way. If a follower does not
//   answer, or answers with an error, the call goes on at the primary. With the first such call a thread
//   begins, which connects to the followers.
// - Memory of RequestMemory stays valid until its last owner drops it, also if its connection has ended.
// - target() is "the primary of shard N"; errors name the address, too.
//
// InvalidArgument: no address, or those of rpc::Connect.
absl::StatusOr<std::unique_ptr<rpc::Channel>> ConnectRouted(RoutedChannelOptions options);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_ROUTE_ROUTED_CHANNEL_H_
