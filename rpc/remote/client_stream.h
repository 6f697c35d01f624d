// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_CLIENT_STREAM_H_
#define TANDEM_RPC_REMOTE_CLIENT_STREAM_H_

// The client's end of a stream, independent of its types.

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

// The client's end of a stream. Items keep their order only if one thread writes them and one reads them. May
// outlive the agent. Thread-safe.
class ClientStreamCore : public std::enable_shared_from_this<ClientStreamCore> {
 public:
  // `what` is the prefix of the function's errors: "worker/1: tokens".
  ClientStreamCore(std::shared_ptr<References> references, std::shared_ptr<CallCounts> counts,
                   std::string what, Member server, uint64_t number, absl::Time deadline)
      : references_(std::move(references)),
        what_(std::move(what)),
        server_(std::move(server)),
        number_(number),
        deadline_(deadline),
        counted_(std::make_unique<CountedCall>(std::move(counts))) {}

  // Requests the first items. Call it once, before the other methods.
  void Begin();
  // Returns the next item, or nullopt at the end. Blocks.
  absl::StatusOr<std::optional<StreamItem>> Read();
  // Sends an item. Blocks while the server is too far behind in reading. Returns the stream's error if it has
  // ended.
  absl::Status Write(StreamItem item);
  // Ends the client's side. Waits until the server has received all items.
  absl::Status EndWrites();
  // Ends the stream with `why` and tells the server.
  void Cancel(absl::Status why);

 private:
  // Requests the next items if that is due.
  void RequestItems();
  // Handles the response to the request for the items from `first` on.
  void OnBatch(uint64_t first, absl::StatusOr<StreamBatch> batch);
  // Sends the items that wait, if no message is under way.
  void SendNext() ABSL_UNLOCK_FUNCTION(mutex_);
  // Handles the response to a message with items.
  void OnSent(absl::Status status);
  // Returns Unavailable if the server has left, or was restarted after the stream began.
  absl::Status CheckServer(RpcAgent* agent) const;
  bool ShouldRequestItems() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<References> references_;  // tell whether the agent still exists
  const std::string what_;
  const Member server_;
  const uint64_t number_;
  const absl::Time deadline_;

  absl::Mutex mutex_;
  std::unique_ptr<CountedCall> counted_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  // Why the server accepts no more items.
  std::optional<absl::Status> writes_end_ ABSL_GUARDED_BY(mutex_);
  // Items from the server.
  std::deque<StreamItem> in_ ABSL_GUARDED_BY(mutex_);
  uint64_t in_next_ ABSL_GUARDED_BY(mutex_) = 0;
  bool read_pending_ ABSL_GUARDED_BY(mutex_) = false;
  // Items to the server.
  std::vector<StreamItem> out_ ABSL_GUARDED_BY(mutex_);      // not sent yet
  std::vector<StreamItem> sending_ ABSL_GUARDED_BY(mutex_);  // not acknowledged yet
  uint64_t out_next_ ABSL_GUARDED_BY(mutex_) = 0;            // the number of the first item in sending_
  bool sending_now_ ABSL_GUARDED_BY(mutex_) = false;
  bool out_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool end_sent_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CLIENT_STREAM_H_
