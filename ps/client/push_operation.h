// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_PUSH_OPERATION_H_
#define TANDEM_PS_CLIENT_PUSH_OPERATION_H_

// One PushAsync or StartPush: sends a request to each server and calls back once.
//
// Pushes of GBA tables go to server 0 first. Its response says to which update of the table they belong
// (ps/server/table/global_batch.h), and the requests to the other servers repeat that. Tables may become GBA
// tables at run time; the responses of server 0 tell.

#include <atomic>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "ps/client/parts.h"
#include "ps/client/push_encoder.h"
#include "ps/client/push_handle.h"
#include "ps/client/push_window.h"
#include "ps/client/row_staleness_totals.h"
#include "rpc/channel.h"

namespace tandem::ps {

// One push. The calls under way share it with the handle, if there is one; the last owner destroys it.
class PushOperation : public PushHandle, public std::enable_shared_from_this<PushOperation> {
 public:
  struct Options {
    absl::Duration timeout;  // of each attempt
    uint64_t step = 0;       // for messages
    // Keeps the requests for RetryAsync. Otherwise RetryAsync must not be called.
    bool retryable = false;
  };
  // `channels` must outlive the operation's calls and be destroyed in order from the first element: the
  // response of server 0 may start calls on the others. `get_positions` has a flag for each slice of the
  // push: whether the last response of server 0 gave the slice's table an update position. All pushes of the
  // table share the flag. `done` runs when all
  // servers have responded or, with the first error, when all calls have ended. `slot` is the push's place in
  // the window. `segments` are those of the push's slices; the row staleness that servers report is added to
  // their totals.
  PushOperation(absl::Span<const std::unique_ptr<rpc::Channel>> channels,
                std::vector<std::shared_ptr<std::atomic<bool>>> get_positions, const Options& options,
                PushWindow::Slot slot, std::vector<PushedSegments> segments, PushDone done);

  // Adds the request for `server`. Must be called for 0, 1, ... in turn. Sends it at once, unless server 0
  // must see the push first.
  void Add(uint32_t server, EncodedPush request);
  // Must be called after the last Add. If server 0 must see the push first and refuses it, the others are not
  // sent.
  void Start();

  std::vector<PushOutcome> outcomes() const override;
  void RetryAsync(PushDone done) override;

 private:
  void Send(uint32_t server);
  void OnResponse(uint32_t server, absl::StatusOr<Bytes> response);
  absl::Status Accept(uint32_t server, const Bytes& response);
  // Copies the update positions in the response of server 0, if there are any, to the waiting requests.
  absl::Status TakePlaces(const v1::PushResponse& response);
  // Returns whether server 0 assigns positions to some table of the push, as far as the client knows.
  bool GetsPosition() const;
  // Returns the servers behind server 0 that have not acknowledged the push.
  std::vector<uint32_t> OthersToSend() const;
  std::vector<uint32_t> OthersToSendLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Ends the attempt with `ended` calls less under way; the last one runs done_.
  void End(uint32_t ended);

  const absl::Span<const std::unique_ptr<rpc::Channel>> channels_;
  const std::vector<std::shared_ptr<std::atomic<bool>>> get_positions_;  // [slices]
  const Options options_;
  PushWindow::Slot slot_;
  const std::vector<PushedSegments> segments_;  // [slices]; empty: no slice has segments

  // These members belong to the attempt under way and are written before its first call starts.
  absl::Time deadline_;
  bool server0_first_;  // server 0 must see the push first
  std::atomic<uint32_t> outstanding_;
  // [server]: the requests. A request is moved away when it is sent, if it is not kept for RetryAsync.
  std::vector<EncodedPush> requests_;

  mutable absl::Mutex mutex_;
  bool under_way_ ABSL_GUARDED_BY(mutex_) = true;
  PushDone done_ ABSL_GUARDED_BY(mutex_);  // of the attempt under way
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
  std::vector<PushOutcome> outcomes_ ABSL_GUARDED_BY(mutex_);  // [server]
  // [server]: an earlier attempt ended as kUnknown. A refusal of the present one says nothing about that.
  std::vector<bool> earlier_unknown_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_PUSH_OPERATION_H_
