// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_STREAM_TABLE_H_
#define TANDEM_RPC_REMOTE_STREAM_TABLE_H_

// The server's end of a worker's streams, by number.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "rpc/remote/call/functions.h"
#include "rpc/remote/call/future.h"
#include "rpc/remote/stream_functions.h"

namespace tandem::rpc::remote {

// The server's end of one stream. Connects the function that serves it with the client's calls. Thread-safe.
class StreamState {
 public:
  // --- For the function. Read and Write block.
  //
  // Returns the client's next item, or nullopt if the client has ended its side or the stream is cancelled.
  std::optional<StreamItem> Read();
  // Sends an item. Waits while the client is too far behind in reading. Cancelled: the stream is cancelled.
  absl::Status Write(StreamItem item);
  // The function has returned `status`.
  void Finish(absl::Status status);
  bool cancelled() const { return stop_.stop_requested(); }
  std::stop_token stop_token() const { return stop_.get_token(); }

  // --- For the client's calls.
  //
  // Returns the items from number `first` on, as soon as there are some. Confirms that the client has the
  // items before `first`. A request that is still waiting ends with Aborted.
  Future<StreamBatch> OnRead(uint64_t first);
  // Takes items, the first of which has number `first`. The future is set when the function can use more
  // items. InvalidArgument: items before `first` are missing. Cancelled: the stream has ended.
  Future<void> OnWrite(uint64_t first, std::vector<StreamItem> items, bool last);
  void Cancel(absl::Status why);
  // Returns the time of the client's last call.
  absl::Time last_contact() const;

 private:
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CanRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WindowIsFull() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the batch from item `first` on, or nullopt if there is nothing to send.
  std::optional<StreamBatch> BatchFrom(uint64_t first) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::stop_source stop_;
  absl::Time contact_ ABSL_GUARDED_BY(mutex_) = MonotonicNow();
  // Items to the client. out_[0] has the number out_first_. Items are kept until the client has requested
  // later ones.
  std::deque<StreamItem> out_ ABSL_GUARDED_BY(mutex_);
  uint64_t out_first_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t out_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::pair<uint64_t, Promise<StreamBatch>>> pending_read_ ABSL_GUARDED_BY(mutex_);
  // Items from the client.
  std::deque<StreamItem> in_ ABSL_GUARDED_BY(mutex_);
  uint64_t in_next_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t in_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool in_ended_ ABSL_GUARDED_BY(mutex_) = false;
  // The client's writes that have no response yet, so that the client sends no more.
  std::vector<Promise<void>> unacknowledged_ ABSL_GUARDED_BY(mutex_);
};

// The streams of one worker. Thread-safe.
class StreamTable {
 public:
  // Adds the functions that clients call (stream_functions.h).
  void AddFunctions(Functions* functions);

  // Adds a stream and returns it with its number.
  std::pair<uint64_t, std::shared_ptr<StreamState>> Open();
  // Cancels the streams whose clients have been silent for kStreamSilence.
  void RunMaintenance();
  // Cancels all streams, and those that are opened later. For the shutdown of the worker.
  void CancelAll();

 private:
  absl::StatusOr<std::shared_ptr<StreamState>> Find(uint64_t number);

  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, std::shared_ptr<StreamState>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_STREAM_TABLE_H_
