// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMANDS_SHARD_COPY_H_
#define TANDEM_CLI_COMMANDS_SHARD_COPY_H_

// The part of `tandem ps --followers K` that makes the process one copy of its shard.

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cluster/member.h"
#include "ps/failover/replica.h"
#include "ps/failover/store_board.h"
#include "ps/server/parameter_server.h"
#include "rpc/service.h"

namespace tandem::cli {

// Runs a ps::Replica with the placement documents of the job's store, tells the store where the shard's
// primary is ("ps/<shard>") while this process is that, and `tandem status` which role it has. Thread-safe,
// except that Start and Stop are called by one thread.
class ShardCopy {
 public:
  struct Options {
    cluster::Member* member = nullptr;      // outlives the copy
    ps::ParameterServer* server = nullptr;  // outlives the copy
    int min_copies = 1;
    bool fresh = false;  // as ps::ReplicaOptions::fresh
    // Called at most once, when the process must end; ps::ReplicaOptions::on_end has the errors.
    std::function<void(const absl::Status&)> on_end;
  };
  explicit ShardCopy(Options options);
  // Calls Stop.
  ~ShardCopy();

  rpc::Service service() { return replica_.service(); }
  // Takes part from now on, at `address`. Copies other than the first leave it a moment to become the
  // primary, so that the primaries of a job's shards are where its servers without followers would be.
  // `on_ready` is called once, when the copy has become a follower or the primary; on a thread of the copy.
  // Called once.
  void Start(const std::string& address, std::function<void()> on_ready);
  tandem::v1::ReplicaStatus Status() const { return replica_.Status(); }
  // The job's store has lost its memory. Returns OK once it has what this copy owns there: of a primary, the
  // placement document and its address. Unavailable: not yet, call again. Blocks for calls to the store.
  absl::Status RegisterAgain();
  // As ps::Replica::Leave.
  absl::Status Leave(absl::Duration timeout) { return replica_.Leave(timeout); }
  bool left() const { return replica_.left(); }
  // As ps::Replica::handed_over.
  bool handed_over() const { return replica_.handed_over(); }
  // As ps::Replica::Stop; and no callback runs any more. May block for a call to the store. Idempotent.
  void Stop();

 private:
  ps::ReplicaOptions ReplicaOptionsOf();
  // Returns whether the job's store knows that it has lost its memory.
  bool HasLostMemory() const;
  void OnChange(const tandem::v1::ReplicaStatus& status);
  // Body of the thread that starts the replica and tells the store where the primary is, which may block.
  void Announce(const std::function<void()>& on_ready);

  const Options options_;
  ps::StoreBoard first_look_;  // ends with the wait before the replica starts
  ps::StoreBoard board_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool told_ready_ ABSL_GUARDED_BY(mutex_) = false;
  std::string address_ ABSL_GUARDED_BY(mutex_);
  uint64_t serving_term_ ABSL_GUARDED_BY(mutex_) =
      0;  // in which this process serves as the primary; 0: in none
  uint64_t announced_term_ ABSL_GUARDED_BY(mutex_) = 0;  // of which the store knows
  ps::Replica replica_;
  std::thread announcer_;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_SHARD_COPY_H_
