// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_DATA_PATH_H_
#define TANDEM_PS_FAILOVER_DATA_PATH_H_

// DataPath is the part by which a parameter server is one copy of a shard: it serves as the primary and ships
// its log, or it receives the primary's log. ps/failover/replica.h decides which, and calls this class.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps/failover/lineage.h"
#include "ps/failover/placement.h"
#include "ps/failover/receiver.h"
#include "ps/failover/shipped_log.h"
#include "rpc/channel.h"

namespace tandem::ps {

// Thread-safe, except that one thread at a time may call Clear, Promote and StepDown.
//
// A server begins closed: it answers only calls that observe it. Its life is one of
//
//   Promote(1)                                               the first primary
//   Clear, receiver().Open, ... receiver().Close, ApplyAll, Promote(term)     a follower that takes over
//
// A primary that has handed over continues with StepDown, receiver().Reopen, ... as a follower.
class DataPath {
 public:
  virtual ~DataPath() = default;

  // Lets the server answer all calls, or only those that observe it: the others fail with Unavailable and
  // the reason, which should name the primary. Calls that wait already are not affected. Initially false.
  // Requires Promote before SetServing(true).
  virtual void SetServing(bool serving, const std::string& why) = 0;

  // Lets the server answer calls as if SetServing(false) was called from `end` (of BootTime()) on, until a
  // later call moves it: the end of the primary's lease. Initially InfiniteFuture. Does not block.
  virtual void SetLeaseEnd(absl::Time end) = 0;
  // Returns the time of ParameterServerOptions::boot_time.
  virtual absl::Time BootTime() const = 0;

  // A learner or follower.

  // Drops the tables, fences and ranks, so that the server is empty. Requires that the server is not serving,
  // and that the receiver has nothing to apply.
  virtual void Clear() = 0;
  // Applies the primary's log to the tables. Its events are those of ReceiverEvents below.
  virtual Receiver& receiver() = 0;
  // Sets the functions of Receiver::Options that begin with on_. Call before Open.
  struct ReceiverEvents {
    std::function<void()> on_heard;
    std::function<void()> on_complete;
    std::function<void(const absl::Status&)> on_failure;
  };
  virtual void SetReceiverEvents(ReceiverEvents events) = 0;

  // Counts of the read-only pulls that this copy got as a follower, and how far it is behind.
  struct FollowerReads {
    uint64_t served = 0;
    uint64_t refused = 0;  // answered OutOfRange: ask the primary
    absl::Duration lag;    // Receiver::CheckRead; infinite if it cannot tell
  };
  virtual FollowerReads follower_reads() const = 0;

  // A primary.

  struct Promotion {
    uint64_t term = 0;
    std::string id;      // of this copy
    int min_copies = 1;  // ShippedLog::Options::min_copies
    uint64_t max_link_bytes = uint64_t{64} << 20;
    absl::Duration lease = absl::Seconds(2);  // ShippedLog::Options::lease
    LinkEvents events;
  };
  // Begins a term as the primary: raises the tables' generations, as a restart does, and begins the log
  // behind the last record that was applied. FailedPrecondition: records that were received are not applied
  // yet, the copy is not whole, or the server is the primary. DataLoss: a table is damaged. Does not
  // serve yet.
  virtual absl::Status Promote(Promotion promotion) = 0;
  // Returns the log of the primary; nullptr before Promote and after StepDown. Valid while the server exists.
  virtual ShippedLog* log() = 0;
  // Ends the term of a primary which has handed over, and keeps its tables: ends the log and its links, lets
  // the calls under way end, finishes those that wait with Unavailable, and makes checkpoints that are being
  // saved give up. Requires SetServing(false). Does not block: `done` runs on a thread of the server, when
  // nothing but the receiver changes the tables any more and receiver().Reopen returns what they contain.
  // After an error the tables cannot be used.
  virtual void StepDown(std::function<void(const absl::Status&)> done) = 0;
  // Begins a link to `copy` and copies the tables to it while pushes go on; if the copy's tables are as
  // `held` says, and the records behind that are at hand, sends only these. Does nothing if the copy has a
  // link. A copy to an address to which others were begun in the last minutes is put off by 2 s at most.
  // Failures of the copying end the link (LinkEvents::on_gone). FailedPrecondition before Promote.
  virtual absl::Status StartLink(const Copy& copy, std::unique_ptr<rpc::Channel> channel,
                                 const Lineage& held = {}) = 0;
  // Returns the longest time for which the copying of a bucket or of the state has held pushes up.
  virtual double longest_copy_pause_s() const = 0;

  // `before` runs on the server's background thread before LoadCheckpoint replaces the tables, and may
  // block; its error becomes that of the call. It must end all links, and `after` may allow new ones.
  // `after` runs when the call has succeeded or failed.
  virtual void SetLoadHooks(std::function<absl::Status()> before, std::function<void()> after) = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_DATA_PATH_H_
