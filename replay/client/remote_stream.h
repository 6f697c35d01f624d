// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CLIENT_REMOTE_STREAM_H_
#define TANDEM_REPLAY_CLIENT_REMOTE_STREAM_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "replay/client/replay.h"
#include "rpc/channel.h"

namespace tandem::replay {

// A call is not repeated with less time left than this.
inline constexpr absl::Duration kShortestCall = absl::Milliseconds(20);

// Sends the items of one writer to a replay server: requests to one table one after the other, each repeated
// with the same sequence until the server has answered, and chunks once. Not thread-safe.
class RemoteStream : public InsertStream {
 public:
  // `channel` must outlive the stream.
  RemoteStream(std::shared_ptr<rpc::Channel> channel, absl::string_view writer, absl::Duration call_timeout,
               absl::Duration round_trip);

  absl::Status Insert(const std::string& table, absl::Span<const NewItem> items, absl::Time deadline,
                      size_t* inserted) override;
  void ReleaseBelow(uint64_t chunk_key) override { release_below_ = chunk_key; }

 private:
  // The requests of this stream to one table.
  struct TableState {
    uint64_t sequence = 0;  // of the last request
    // The number of its items if it is not known whether they are in the table; else 0.
    size_t unresolved = 0;
    uint64_t acknowledged = 0;  // items that are known to have been inserted
  };

  // Sends one request with the sequence of `state` and returns its result. Sets `inserted` as Insert does.
  absl::Status Send(const std::string& table, const TableState& state, absl::Span<const NewItem> items,
                    absl::Time deadline, size_t* inserted);
  // Encodes a request. Adds the keys of the chunks that it carries to `sent`.
  Bytes Encode(const std::string& table, const TableState& state, absl::Span<const NewItem> items,
               bool no_wait, std::vector<uint64_t>* sent) const;
  // Returns how many of the items go into one request.
  size_t RequestItems(absl::Span<const NewItem> items) const;

  const std::shared_ptr<rpc::Channel> channel_;
  const std::string writer_;
  const absl::Duration call_timeout_, round_trip_;  // RemoteReplayOptions
  const uint64_t incarnation_;
  uint64_t server_ = 0;                      // the incarnation of the server that has answered
  absl::flat_hash_set<uint64_t> delivered_;  // the chunks that it has
  uint64_t release_below_ = 0;
  std::map<std::string, TableState> tables_;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CLIENT_REMOTE_STREAM_H_
