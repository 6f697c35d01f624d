// SPDX-License-Identifier: Apache-2.0
#include "ps/client/route/routed_channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ps/client/route/follower_reading_channel.h"
#include "ps/client/route/routed_transport.h"
#include "rpc/endpoint/make_transport.h"
#include "rpc/transport/retrying_channel.h"
#include "rpc/transport/timer_queue.h"

namespace tandem::ps {

absl::StatusOr<std::unique_ptr<rpc::Channel>> ConnectRouted(RoutedChannelOptions options) {
  if (options.addresses.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a channel to shard ", options.shard, " needs the address of at least one copy"));
  }
  const rpc::ChannelOptions limits = options.connect.channel;
  if (options.open_transport == nullptr) {
    options.open_transport = [connect = options.connect](const std::string& address) {
      return rpc::MakeTransport(address, connect);
    };
  }
  if (options.open_questions == nullptr) {
    options.open_questions = [limits](const std::string& address) {
      return rpc::ConnectGrpc(address, limits);
    };
  }
  auto timers = std::make_unique<rpc::TimerQueue>();
  const uint32_t shard = options.shard;
  const auto followers = std::make_shared<FollowerSet>(FollowerSet::Options{
      .open = [open = options.open_transport,
               limits](const std::string& address) -> absl::StatusOr<std::unique_ptr<rpc::Channel>> {
        auto timers = std::make_unique<rpc::TimerQueue>();
        TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Transport> transport, open(address));
        return rpc::MakeRetryingChannel(address, std::move(transport), std::move(timers),
                                        limits.max_message_bytes, {}, limits.max_outstanding_bytes);
      },
      .patience = options.follower_patience});
  const auto placed = [weak = std::weak_ptr(followers)](const v1::ShardPlacement& placement) {
    if (const std::shared_ptr<FollowerSet> set = weak.lock()) set->OnPlacement(placement);
  };
  auto transport = std::make_unique<RoutedTransport>(std::move(options), timers.get(), placed);
  TANDEM_RETURN_IF_ERROR(transport->Open());
  // The waits between attempts at a primary that answers Unavailable, and before an attempt is parked.
  constexpr rpc::BackoffOptions kBackoff = {.initial = absl::Milliseconds(5), .max = absl::Milliseconds(50)};
  return MakeFollowerReadingChannel(
      rpc::MakeRetryingChannel(absl::StrCat("the primary of shard ", shard), std::move(transport),
                               std::move(timers), limits.max_message_bytes, kBackoff,
                               limits.max_outstanding_bytes),
      followers);
}

}  // namespace tandem::ps
