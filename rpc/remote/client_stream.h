// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_CLIENT_STREAM_H_
#define TANDEM_RPC_REMOTE_CLIENT_STREAM_H_

// The client's end of a stream, independent of the types of its items (stream.h has the typed form). It
// implements the client's side of the protocol in stream_functions.h.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/remote/directory.h"
#include "rpc/remote/invocations.h"
#include "rpc/remote/references.h"
#include "rpc/remote/stream_functions.h"

namespace tandem::rpc::remote {

// The client's end of one stream that the server has opened. Items go in both directions, independently.
//
// A stream ends once, in one of these ways, and never resumes:
//
//   - the function at the server has returned: OK, or its error;
//   - Cancel was called: its argument;
//   - `deadline` has passed: DeadlineExceeded;
//   - the server has left the directory or was restarted: Unavailable;
//   - the agent has shut down, or a call to the server failed: that error.
//
// The deadline is checked, and the end is received, only while fewer than kStreamWindow / 2 received items
// wait for Read. While that many wait, the client tells the server every kStreamKeepAlive that it is alive,
// however long the application takes to read them. A client from which the server hears nothing for
// kStreamSilence counts as silent, and the server cancels the stream.
//
// Thread-safe. Items keep their order only if one thread writes them and one reads them. May outlive the
// agent. The destructor does not end the stream at the server; call Cancel before.
class ClientStreamCore : public std::enable_shared_from_this<ClientStreamCore> {
 public:
  // `number` is the number that `server` has given the stream. `deadline` limits the whole stream. `what`
  // names server and function in errors: "worker/1: tokens". `references` leads to the agent while it exists.
  // `counts` counts the stream as a call under way until it ends. The object must be owned by a shared_ptr.
  ClientStreamCore(std::shared_ptr<References> references, std::shared_ptr<CallCounts> counts,
                   std::string what, Member server, uint64_t number, absl::Time deadline)
      : references_(std::move(references)),
        what_(std::move(what)),
        server_(std::move(server)),
        number_(number),
        deadline_(deadline),
        counted_(std::make_unique<CountedCall>(std::move(counts))) {}

  // Requests the first items. Does not block. Must be called once, before the other methods.
  void Begin();
  // Returns the next item. Blocks until there is one or the stream has ended. After the end, returns the
  // items that had arrived before, then nullopt if the stream ended with OK, else its error.
  absl::StatusOr<std::optional<StreamItem>> Read();
  // Queues an item for sending. Blocks while kStreamWindow items or kStreamWindowBytes wait to be sent, which
  // is so when the server is too far behind in reading, or until the stream has ended. OK does not mean that
  // the server has received the item. Errors:
  //
  //   - the stream's error, if it has ended with one;
  //   - Cancelled: the server has ended the stream, or accepts no more items;
  //   - FailedPrecondition: EndWrites was called.
  absl::Status Write(StreamItem item);
  // Ends the client's side: Write then fails, Read goes on. Blocks until the server has received all items or
  // the stream has ended. Returns OK if it has received them, or if the function has returned OK without
  // reading them. Else returns the stream's error, or the reason why the server accepts no more items.
  absl::Status EndWrites();
  // Ends the stream with the error `why` and asks the server to cancel it. Does not block. Waiting calls of
  // Read, Write and EndWrites return. No effect if the stream has ended.
  void Cancel(absl::Status why);

 private:
  // Requests the next items if ShouldRequestItems().
  void RequestItems();
  // Runs KeepAlive after kStreamKeepAlive.
  void ScheduleKeepAlive();
  // Tells the server that the client is alive, if no request for items does, and schedules the next time.
  void KeepAlive();
  // Handles the response to the request for the items from `first` on.
  void OnBatch(uint64_t first, absl::StatusOr<StreamBatch> batch);
  // Sends the items in out_, or sending_ again, and the end, if no message is under way.
  void SendNext() ABSL_UNLOCK_FUNCTION(mutex_);
  // Handles the response to a message with items.
  void OnSent(absl::Status status);
  // Returns Unavailable if the server has left, or was restarted after the stream began. Returns the error of
  // an agent that has shut down if `agent` is null.
  absl::Status CheckServer(RpcAgent* agent) const;
  bool ShouldRequestItems() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<References> references_;  // tell whether the agent still exists
  const std::string what_;
  const Member server_;
  const uint64_t number_;
  const absl::Time deadline_;

  absl::Mutex mutex_;
  std::unique_ptr<CountedCall> counted_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // how the stream has ended; nullopt: it has not
  // Why the server accepts no more items.
  std::optional<absl::Status> writes_end_ ABSL_GUARDED_BY(mutex_);
  // Items from the server.
  std::deque<StreamItem> in_ ABSL_GUARDED_BY(mutex_);
  uint64_t in_next_ ABSL_GUARDED_BY(mutex_) = 0;  // the number of the next item to request
  bool read_pending_ ABSL_GUARDED_BY(mutex_) = false;
  bool keep_alive_scheduled_ ABSL_GUARDED_BY(mutex_) = false;
  // Items to the server.
  std::vector<StreamItem> out_ ABSL_GUARDED_BY(mutex_);      // not sent yet
  std::vector<StreamItem> sending_ ABSL_GUARDED_BY(mutex_);  // not acknowledged yet
  uint64_t out_next_ ABSL_GUARDED_BY(mutex_) = 0;            // the number of the first item in sending_
  bool sending_now_ ABSL_GUARDED_BY(mutex_) = false;         // a message with items is under way
  bool out_ended_ ABSL_GUARDED_BY(mutex_) = false;           // EndWrites was called
  bool end_sent_ ABSL_GUARDED_BY(mutex_) = false;            // the latest message says that no items follow
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CLIENT_STREAM_H_
