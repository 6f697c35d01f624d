// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SUBSCRIPTION_SUBSCRIPTION_H_
#define TANDEM_PS_SUBSCRIPTION_SUBSCRIPTION_H_

// Subscription follows the tables of all servers of a job, for programs that serve a model:
//
//   auto subscription = Subscription::Open(std::move(channels), {.tables = {"user"}, .position = stored});
//   while (true) {
//     absl::StatusOr<ChangeBatch> batch = (*subscription)->Next(absl::Seconds(1));
//     for (const RowChanges& changes : batch->changes) Apply(changes);
//     Store((*subscription)->position());
//   }
//
// The channels follow a shard to another server when its primary dies (ps/client/route/connect_shard.h), and
// repeat calls that a death interrupts.

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ps/subscription/row_changes.h"
#include "rpc/channel.h"
#include "tandem/v1/parameter_server.pb.h"
#include "tandem/v1/subscriptions.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

struct SubscriptionOptions {
  std::vector<std::string> tables;  // empty: all tables
  // Subscription::position of an earlier subscription to the same tables; empty: from the beginning, every
  // row.
  std::string position;
  uint32_t max_bytes = 4 << 20;  // about how much a server answers at a time
  // The least time between two passes over a server's tables. A pass reads 16 bytes of the server's memory
  // for each row of a table that has changed.
  absl::Duration interval = absl::Milliseconds(50);
  // How long calls are repeated while a server is away.
  absl::Duration timeout = absl::Seconds(30);
};

// Changes of one server. They must be applied in their order.
struct ChangeBatch {
  uint32_t server = 0;
  // Nothing else of this server had changed when its pass began.
  bool complete = false;
  // The configurations of the tables that begin anew with this batch.
  std::vector<v1::TableConfig> tables;
  std::vector<RowChanges> changes;
  uint32_t num_buckets = 0;  // of a table, over all servers
};

// Not thread-safe, except for Cancel.
class Subscription {
 public:
  // Begins to follow the servers of a job; `channels` has one for each, in the order of their indexes. Does
  // not block. InvalidArgument: the position is of another number of servers, or no position.
  static absl::StatusOr<std::unique_ptr<Subscription>> Open(
      std::vector<std::unique_ptr<rpc::Channel>> channels, const SubscriptionOptions& options);
  // Cancels the calls that are under way, and waits for them.
  ~Subscription();

  // Returns the next changes of a server. Blocks until there are some, or for `wait`. Errors, after which the
  // position is as before and Next may be called again:
  //
  //   - DeadlineExceeded: nothing has changed for `wait`
  //   - Unavailable: a server was away for SubscriptionOptions::timeout
  //   - NotFound: there is no such table (yet)
  //   - InvalidArgument: the position is not of these servers
  //   - Cancelled, after Cancel
  absl::StatusOr<ChangeBatch> Next(absl::Duration wait);

  // Returns where a later subscription goes on, if the batches that Next has returned are applied. Opaque.
  std::string position() const;
  // Returns whether the last batch of every server was complete: with what Next has returned a copy has every
  // change that was acknowledged when the passes began. Happens again and again, also while pushes go on.
  bool caught_up() const;

  // Ends Next, now and later, with Cancelled.
  void Cancel();

 private:
  struct Server {
    std::unique_ptr<rpc::Channel> channel;
    std::string position;
    bool complete = false;
    bool under_way = false;        // a call is
    absl::Time next_call;          // not before this time
    absl::StatusOr<Bytes> answer;  // of the last call, until Next has taken it
    bool answered = false;
  };

  explicit Subscription(const SubscriptionOptions& options) : options_(options) {}
  bool caught_up(size_t server) const;
  void Call(size_t server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the changes of an answer.
  absl::StatusOr<ChangeBatch> Take(size_t server, const absl::StatusOr<Bytes>& answer);

  const SubscriptionOptions options_;
  std::stop_source cancel_;
  mutable absl::Mutex mutex_;
  std::vector<Server> servers_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;  // the server whose answer is taken first
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SUBSCRIPTION_SUBSCRIPTION_H_
