// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_REMOTE_STORE_H_
#define TANDEM_CLUSTER_STORE_REMOTE_STORE_H_

// The client of a store that another process serves (StoreServer).

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cluster/store/store.h"
#include "google/protobuf/message_lite.h"
#include "rpc/channel.h"

namespace tandem::cluster {

// Thread-safe. Every call is repeated with backoff while the server cannot be reached and its time-out is not
// over. A call that changes something carries a unique request id. If its first response was lost, the server
// recognises the repeat and returns the first response again, so the change is applied once. The server
// remembers the last 16384 responses.
//
// Errors: Unavailable if the server did not respond in time; whether a change was made is then unknown.
// Aborted if the server's shutdown ended a wait.
class RemoteStore final : public Store {
 public:
  // `call_timeout` bounds the calls that take no time-out of their own. Get, Wait, MultiGet and Pop may take
  // up to a second longer than their time-out to detect that the server is silent.
  explicit RemoteStore(std::shared_ptr<rpc::Channel> channel,
                       absl::Duration call_timeout = absl::Seconds(30));

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<std::string> GetIfPresent(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override;
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override;
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override;
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override;
  absl::StatusOr<int64_t> Append(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override;
  absl::Status MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  absl::StatusOr<std::vector<std::string>> List(absl::string_view prefix) override;
  absl::StatusOr<int64_t> NumKeys() override;
  absl::Status Push(absl::string_view queue, absl::string_view value) override;
  absl::StatusOr<std::string> Pop(absl::string_view queue, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Length(absl::string_view queue) override;
  std::string address() const override;

  const std::shared_ptr<rpc::Channel>& channel() const { return channel_; }

 private:
  absl::Status Call(absl::string_view method, const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response, absl::Duration timeout);
  std::string NextRequestId();

  const std::shared_ptr<rpc::Channel> channel_;
  const absl::Duration call_timeout_;
  const uint64_t client_[2];  // random: distinguishes this client's request ids from all others
  std::atomic<uint64_t> next_request_{0};
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_REMOTE_STORE_H_
