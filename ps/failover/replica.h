// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_REPLICA_H_
#define TANDEM_PS_FAILOVER_REPLICA_H_

// Makes a parameter server one of several copies of its shard: the primary, which serves, or a follower,
// which takes over when the primary dies (docs/durability.md).
//
//   ps::ParameterServer server({.index = 0, .num_servers = 2, .failover = true});
//   ps::Replica replica({.shard = 0, .board = &board, .server = &server, ...});
//   auto listening = rpc::Server::Start({.listen = "0.0.0.0:7000"}, {server.service(), replica.service()});
//   replica.Start("10.0.0.1:7000");      // now the process takes part
//   ...
//   replica.Stop();
//   server.Stop();
//   (*listening)->Shutdown(grace);

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ps/failover/board.h"
#include "ps/server/parameter_server.h"
#include "ps/shard_map.h"
#include "rpc/caller.h"
#include "rpc/channel.h"
#include "rpc/service.h"
#include "tandem/v1/failover.pb.h"

namespace tandem::ps {

struct ReplicaOptions {
  uint32_t shard = 0;
  uint32_t num_servers = 1;
  uint32_t num_buckets = kDefaultBuckets;
  Board* board = nullptr;  // must outlive the replica; Stop cancels it
  // The server of that shard, made with ParameterServerOptions::failover. Must outlive the replica.
  ParameterServer* server = nullptr;
  // Opens a channel to another copy. Must return at once. The default is rpc::ConnectGrpc with `caller`.
  std::function<absl::StatusOr<std::unique_ptr<rpc::Channel>>(const std::string& address)> connect;
  rpc::Caller caller = {};
  // Returns whether nobody listens at an address; may block for a second. The default is
  // rpc::PortProbe.
  std::function<bool(const std::string& address)> refuses;
  // The number of copies that must have a push before it is acknowledged, the primary's included.
  int min_copies = 1;
  // Whether this process may become the primary of an empty shard if there is no document. A launcher says so
  // at the start of a round. Other processes wait for a document, at most `publish_time`.
  bool fresh = false;
  // If the board has lost the document, its primary publishes it again once the other copies agree. A primary
  // that cannot do so for this long ends with DataLoss.
  absl::Duration publish_time = absl::Seconds(30);
  // After this time without a word from the primary a follower takes over. If the primary's connection closes
  // and its port refuses a new one, the follower does not wait. Equal in all copies of a shard.
  absl::Duration lease = absl::Seconds(2);
  // After this time without an answer the primary goes on without a follower. Below the lease.
  absl::Duration silence = absl::Seconds(1);
  // After this time in which a follower stores none of the records that wait for it, though it answers (a
  // disk that hangs), the primary goes on without it, too.
  absl::Duration stall = absl::Seconds(10);
  // A learner gives its shard up if the ports of the primary and of all followers in sync refuse connections,
  // or if it has reached none of them for `give_up`; and if the board holds none of them for alive. A
  // follower begins anew if its primary has had no link to it for `give_up`.
  absl::Duration give_up = absl::Seconds(10);
  uint64_t max_link_bytes = uint64_t{64} << 20;  // unsent, of a copy that is not in sync; then its link ends
  // Run on the replica's thread, one at a time, and must not block: after each change of role, of the term or
  // of `serving`; and once, when the process must end because it was deposed (Aborted), has handed over
  // (Cancelled), its shard is lost (DataLoss) or it does not fit to the other copies (FailedPrecondition).
  // The message says what to do.
  std::function<void(const v1::ReplicaStatus&)> on_change;
  std::function<void(const absl::Status&)> on_end;
};

// Thread-safe. Owns a thread that makes all decisions (ps/failover/protocol.h) and one that talks to the
// board.
class Replica {
 public:
  explicit Replica(ReplicaOptions options);
  // Calls Stop. No handler of service() may be running.
  ~Replica();

  // Returns the service tandem.v1.Failover. Its handlers refer to this object. They may be called before
  // Start.
  rpc::Service service();

  // Takes part in the shard's copies from now on. `address` is where the other copies and the clients reach
  // this process, which must be listening. Called once. Does not block.
  void Start(const std::string& address);

  // Returns what this process knows. Does not block.
  v1::ReplicaStatus Status() const;

  // Removes all followers from the document and ends their links, so that the tables can be replaced by
  // others which the log does not describe; copies that attach wait until AllowFollowers. Blocks at most
  // `timeout`. Unavailable: the process is not the primary, or the board could not be reached; then
  // AllowFollowers must be called, too.
  absl::Status RemoveFollowers(absl::Duration timeout);
  void AllowFollowers();

  // The job's store has lost its memory, or may have: a primary looks whether its document is there, and
  // publishes it again if not; a process that has not started begins no shard. Does not block.
  void BoardReset();

  // Makes a follower the primary, while calls wait for a moment. `to` is its id or address; empty: the one
  // that is least behind. Waits at most `timeout` for it to be in sync, and 2 s more. After OK this process
  // becomes a follower and keeps its tables, unless they have records that the new primary lacks, which then
  // copies its own; on_end is called with Cancelled if that is not possible. FailedPrecondition: this process
  // is not the primary, or no such follower is in sync. Unavailable: the follower has too much to apply, or
  // did not say that it serves. This process then goes on as the primary, unless only the answer was lost; in
  // that case on_end is called with Cancelled.
  absl::Status HandOver(const std::string& to, absl::Duration timeout);

  // Takes this process out of its shard: a primary hands over, a follower is taken out of the document. Waits
  // as HandOver does. After OK, on_end is called with Cancelled, and left() is true. FailedPrecondition: the
  // shard would be lost, or pushes would wait for min_copies. Unavailable: another copy did not answer.
  absl::Status Leave(absl::Duration timeout);
  // Returns whether this process has left its shard for good.
  bool left() const;
  // Returns whether this process has ended after it was the primary and has handed over. Unless left() is
  // true, it shall come back as a follower.
  bool handed_over() const;

  // Ends all links, calls and waits, cancels the board and joins the threads. A primary that stops is
  // replaced by a follower. Blocks for a call to the board at most. Idempotent.
  void Stop();

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;  // callbacks of calls and links hold weak references
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_REPLICA_H_
