#ifndef TANDEM_RPC_REMOTE_CLIENT_STREAM_H_
#define TANDEM_RPC_REMOTE_CLIENT_STREAM_H_

// The client's end of a stream, without its types.

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

// Thread-safe; items of one side keep their order only within a thread. It may outlive the agent.
class ClientStreamCore : public std::enable_shared_from_this<ClientStreamCore> {
 public:
  // `what` begins the errors that the function ends with: "worker/1: tokens".
  ClientStreamCore(std::shared_ptr<References> references, std::shared_ptr<CallCounts> counts,
                   std::string what, Member server, uint64_t number, absl::Time deadline)
      : references_(std::move(references)),
        what_(std::move(what)),
        server_(std::move(server)),
        number_(number),
        deadline_(deadline),
        counted_(std::make_unique<CountedCall>(std::move(counts))) {}

  // Asks for the first items.
  void Begin();
  // The next item; nothing at the end. Blocks.
  absl::StatusOr<std::optional<StreamItem>> Read();
  // Blocks while the server has no room. What the stream ended with, if it has.
  absl::Status Write(StreamItem item);
  // No more items from here; waits until the server has them all.
  absl::Status EndWrites();
  void Cancel(absl::Status why);

 private:
  void Ask();
  void OnBatch(uint64_t first, absl::StatusOr<StreamBatch> batch);
  void SendNext() ABSL_UNLOCK_FUNCTION(mutex_);
  void OnSent(absl::Status status);
  // Whether the life of the server that the stream began with is there.
  absl::Status CheckServer(RpcAgent* agent) const;
  bool ShouldAsk() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<References> references_;  // know whether the agent is there
  const std::string what_;
  const Member server_;
  const uint64_t number_;
  const absl::Time deadline_;

  absl::Mutex mutex_;
  std::unique_ptr<CountedCall> counted_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> writes_end_ ABSL_GUARDED_BY(mutex_);  // the server takes no more
  // From the server.
  std::deque<StreamItem> in_ ABSL_GUARDED_BY(mutex_);
  uint64_t in_next_ ABSL_GUARDED_BY(mutex_) = 0;
  bool asking_ ABSL_GUARDED_BY(mutex_) = false;
  // To the server.
  std::vector<StreamItem> out_ ABSL_GUARDED_BY(mutex_);      // not sent yet
  std::vector<StreamItem> sending_ ABSL_GUARDED_BY(mutex_);  // not acknowledged yet
  uint64_t out_next_ ABSL_GUARDED_BY(mutex_) = 0;            // the number of sending_'s first
  bool sending_now_ ABSL_GUARDED_BY(mutex_) = false;
  bool out_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool end_sent_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CLIENT_STREAM_H_
