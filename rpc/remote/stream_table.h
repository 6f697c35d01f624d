#ifndef TANDEM_RPC_REMOTE_STREAM_TABLE_H_
#define TANDEM_RPC_REMOTE_STREAM_TABLE_H_

// The server's end of streams: one worker's, by number.

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
#include "rpc/remote/call/functions.h"
#include "rpc/remote/call/future.h"
#include "rpc/remote/stream_functions.h"

namespace tandem::rpc::remote {

// One stream at its server, between the function that serves it and the client's calls. Thread-safe.
class StreamState {
 public:
  // --- For the function; these block.
  // The next item of the client; nothing when it has ended its side or the stream is cancelled.
  std::optional<StreamItem> Read();
  // Waits for room. Cancelled when nobody reads any more.
  absl::Status Write(StreamItem item);
  // The function is over.
  void Finish(absl::Status status);
  bool cancelled() const { return stop_.stop_requested(); }
  std::stop_token stop_token() const { return stop_.get_token(); }

  // --- For the client's calls.
  Future<StreamBatch> OnRead(uint64_t first);
  Future<void> OnWrite(uint64_t first, std::vector<StreamItem> items, bool last);
  void Cancel(absl::Status why);
  absl::Time last_contact() const;

 private:
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CanRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasEnough() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The batch from `first`, if there is anything to tell.
  std::optional<StreamBatch> BatchFrom(uint64_t first) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::stop_source stop_;
  absl::Time contact_ ABSL_GUARDED_BY(mutex_) = absl::Now();
  // To the client: out_[0] has the number out_first_; kept until the client has asked for what follows.
  std::deque<StreamItem> out_ ABSL_GUARDED_BY(mutex_);
  uint64_t out_first_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t out_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::pair<uint64_t, Promise<StreamBatch>>> asked_ ABSL_GUARDED_BY(mutex_);
  // From the client.
  std::deque<StreamItem> in_ ABSL_GUARDED_BY(mutex_);
  uint64_t in_next_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t in_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool in_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Promise<void>> unacknowledged_ ABSL_GUARDED_BY(mutex_);
};

// Thread-safe.
class StreamTable {
 public:
  void AddFunctions(Functions* functions);

  // A new stream and its number.
  std::pair<uint64_t, std::shared_ptr<StreamState>> Open();
  // Gives up streams whose clients have been silent for too long.
  void RunMaintenance();
  // The worker shuts down.
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
