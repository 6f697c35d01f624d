// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_ROUTE_FOLLOWER_READING_CHANNEL_H_
#define TANDEM_PS_CLIENT_ROUTE_FOLLOWER_READING_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/channel.h"
#include "rpc/forwarding_channel.h"
#include "tandem/v1/failover.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// A channel to the primary of a server of which there are several copies.
class CopiesChannel : public rpc::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  // As CallAsync, for a method that reads, and that any copy may answer, also one that is a little behind.
  // Requires `options.idempotent`.
  virtual void CallAnyCopy(absl::string_view method, Bytes request, const rpc::CallOptions& options,
                           Done done) = 0;
};

// The followers of a shard, for CopiesChannel::CallAnyCopy. Connects to the followers that the placement
// document names as in sync, on a thread of its own, which begins with the first such call.
//
// A call goes to the copy with the fewest of these calls under way, the primary included. If a follower
// answers with an error, or not within `patience`, the call goes on at the primary, and the follower rests:
// for 10 ms after OutOfRange, because it is behind its primary, otherwise for 50 ms. The rest doubles with
// each failure in a row, up to 100 ms and 2 s.
//
// Thread-safe. Must be owned by a shared_ptr.
class FollowerSet : public std::enable_shared_from_this<FollowerSet> {
 public:
  struct Options {
    // Opens a channel to a follower; may block for a second.
    std::function<absl::StatusOr<std::unique_ptr<rpc::Channel>>(const std::string& address)> open;
    absl::Duration patience = absl::Milliseconds(500);
  };
  explicit FollowerSet(Options options) : options_(std::move(options)) {}
  ~FollowerSet();

  // The document that is in force.
  void OnPlacement(const v1::ShardPlacement& placement);

  // Sends a call of an idempotent method to some copy, as rpc::Channel::CallAsync does. `primary` must
  // outlive the call to Close.
  void Call(rpc::Channel& primary, absl::string_view method, Bytes request, const rpc::CallOptions& options,
            rpc::Channel::Done done);
  // Returns whether Call was called.
  bool used() const { return used_.load(std::memory_order_acquire); }

  // Ends the calls that are under way at followers with Cancelled, and the thread. Waits for `open` if that
  // is under way. No call of Call may be under way. Idempotent.
  void Close();

 private:
  struct Follower {
    std::string address;
    std::unique_ptr<rpc::Channel> channel;
    // Guarded by mutex_:
    int starting = 0;      // threads that are about to call, which need the channel
    bool retired = false;  // not in sync any more: its channel is closed once no thread needs it
    int calls = 0;         // under way
    int failures = 0;
    absl::Time rests_until = absl::InfinitePast();
  };
  // A call at a follower.
  struct Reading;

  void Run();
  // Connects to followers that are in sync, and closes the connections to others. Returns when to call it
  // again, unless something changes before.
  absl::Time Connect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the follower that is to answer the next call, which is counted; nullptr: the primary.
  std::shared_ptr<Follower> Choose();
  void OnAnswer(const std::shared_ptr<Reading>& reading, absl::StatusOr<Bytes> answer);
  void CallPrimary(rpc::Channel& primary, absl::string_view method, Bytes request,
                   const rpc::CallOptions& options, rpc::Channel::Done done);

  const Options options_;
  std::atomic<bool> used_{false};

  absl::Mutex mutex_;
  absl::CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool look_ ABSL_GUARDED_BY(mutex_) = false;                // `wanted_` has changed
  std::vector<std::string> wanted_ ABSL_GUARDED_BY(mutex_);  // addresses of the followers in sync
  std::vector<std::shared_ptr<Follower>> followers_ ABSL_GUARDED_BY(mutex_);
  // Followers that are not in sync any more, while threads still need their channels.
  std::vector<std::shared_ptr<Follower>> retired_ ABSL_GUARDED_BY(mutex_);
  // When to try the followers again to which there was no connection, by address.
  std::map<std::string, absl::Time> open_again_ ABSL_GUARDED_BY(mutex_);
  uint64_t turn_ ABSL_GUARDED_BY(mutex_) = 0;
  int primary_calls_ ABSL_GUARDED_BY(mutex_) = 0;  // of Call, under way
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

// Returns a channel that makes the calls of CallAnyCopy at `followers`, and the others at `primary`.
std::unique_ptr<CopiesChannel> MakeFollowerReadingChannel(std::unique_ptr<rpc::Channel> primary,
                                                          std::shared_ptr<FollowerSet> followers);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_ROUTE_FOLLOWER_READING_CHANNEL_H_
