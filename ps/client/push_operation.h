#ifndef TANDEM_PS_CLIENT_PUSH_OPERATION_H_
#define TANDEM_PS_CLIENT_PUSH_OPERATION_H_

// One PushAsync: a request to each server, and one word to the caller when all have answered.
//
// Pushes of GBA tables go to server 0 first: it says where in the table's updates they belong
// (ps/server/table/global_batch.h), and the requests to the others carry that along. Whether tables are GBA
// changes while running; server 0's answers tell.

#include <atomic>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "ps/client/parts.h"
#include "ps/client/push_encoder.h"
#include "rpc/channel.h"

namespace tandem::ps {

// Shared by the answers under way; destroys itself after the last one.
class PushOperation : public std::enable_shared_from_this<PushOperation> {
 public:
  // `channels` is destroyed from its first element on and outlives the calls of all others. `places_told`:
  // whether the last answer of server 0 told places; read and written by all of a client's pushes. `done`
  // runs when all servers have answered or, with the first error, when all calls have ended.
  PushOperation(absl::Span<const std::unique_ptr<rpc::Channel>> channels, std::atomic<bool>* places_told,
                absl::Duration timeout, PushDone done);

  // The request for `server`; called for 0, 1, ... in turn. Sent at once, unless server 0 must see the push
  // first.
  void Add(uint32_t server, EncodedPush request);
  // After the last of them. Should server 0 refuse a push that it must see first, the others are not sent.
  void Go();

 private:
  void Send(uint32_t server, EncodedPush request);
  void OnResponse(uint32_t server, absl::StatusOr<Bytes> response);
  // Server 0's places, if it told any, for the requests that wait for them.
  absl::Status TakePlaces(const Bytes& response);

  const absl::Span<const std::unique_ptr<rpc::Channel>> channels_;
  std::atomic<bool>* const places_told_;
  PushDone done_;
  const absl::Time deadline_;
  const bool in_turn_;                // server 0 first
  EncodedPush first_;                 // in_turn_: of server 0, until Go
  std::vector<EncodedPush> waiting_;  // in_turn_: of servers 1, 2, ..., until server 0 has answered
  std::atomic<uint32_t> outstanding_;
  absl::Mutex mutex_;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_PUSH_OPERATION_H_
