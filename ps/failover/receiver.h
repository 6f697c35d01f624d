// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_RECEIVER_H_
#define TANDEM_PS_FAILOVER_RECEIVER_H_

// The end of a link at a copy: puts the primary's messages in order, checks their records, answers when they
// are stored in memory, and applies them to the tables on a thread of its own.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/buffer_pool.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "ps/failover/append_fence.h"
#include "ps/failover/lineage.h"
#include "ps/failover/log_tail.h"
#include "ps/log/record.h"
#include "rpc/service.h"
#include "tandem/v1/failover.pb.h"

namespace tandem::ps {

// Where a receiver applies what it gets: the tables of a server (ps/server/state_restore.h), or a test. Calls
// come from the receiver's thread, one at a time, in the order of the link: the state first. A later state
// replaces everything. After an error no more calls come until the next Open.
class ReceivedRecords {
 public:
  virtual ~ReceivedRecords() = default;
  // Applies a record of any kind but END. `record.body` is valid as long as a copy of `memory` exists.
  virtual absl::Status Apply(const Record& record, const std::shared_ptr<const void>& memory) = 0;
  // The copy is whole: END has arrived. Errors: the copy cannot be used and must be made anew.
  virtual absl::Status Complete() = 0;
};

// Thread-safe. The destructor calls Stop.
class Receiver {
 public:
  struct Options {
    uint32_t shard = 0;
    uint64_t max_unapplied_bytes = uint64_t{64} << 20;  // of stored records; acknowledgements wait then
    // The last records are kept up to this size, for other followers in case this copy takes over.
    uint64_t max_tail_bytes = uint64_t{16} << 20;
    size_t window = 16;  // messages that may be in flight
    // The clock of CheckRead. While this machine is suspended, the primary may get any number of records.
    std::function<absl::Time()> boot_time = BootTimeNow;
    // All run without locks and must not block; they may call the receiver's functions except Stop and Drop.
    std::function<void()> on_heard;     // a message of the open link has come, at most every 20 ms
    std::function<void()> on_complete;  // END was applied
    // A record could not be applied: the copy must be made anew.
    std::function<void(const absl::Status& why)> on_failure;
  };
  // Tells what has arrived. A plain value.
  struct State {
    uint64_t stored_number = 0;
    uint64_t stored_position = 0;
    uint64_t applied_position = 0;
    uint64_t primary_position = 0;  // the last record in the primary's log, when it was last heard
    uint64_t unapplied_bytes = 0;
    bool complete = false;  // END was applied
    uint64_t term = 0;      // of the primary whose log led to stored_position
    absl::Status status;    // the error of on_failure
  };

  // `records` must outlive the receiver.
  Receiver(Options options, ReceivedRecords* records);
  ~Receiver();

  // Records that `term` has begun: messages of earlier terms are answered with it, and not stored.
  void Raise(uint64_t term);
  // Returns the largest term that was raised or opened.
  uint64_t term() const;
  // Takes messages of the link from the primary `primary` of `term` to the copy `self` from now on, from
  // number 1. Requires that the receiver is closed and that everything was applied or dropped.
  void Open(uint64_t term, const std::string& primary, const std::string& self);
  // Does the same, but keeps what is stored, so that a primary which lacks nothing of it sends only the
  // records behind it. Returns what is stored. If the copy is not whole, or has failed, returns term 0 and
  // does nothing. A link that begins with a state replaces everything.
  Lineage Reopen(uint64_t term, const std::string& primary, const std::string& self);
  // Notes that the tables contain `held`, as Reopen then returns it, because this copy was the primary.
  // Requires that the receiver is closed and that everything was applied or dropped.
  void Adopt(const Lineage& held);
  // Returns the last records that are stored, and forgets them. To be called when this copy takes over.
  LogTail TakeTail();
  // Stores nothing more: messages that come later, and those that are not stored yet, are answered
  // Unavailable with `why`. What is stored is still applied.
  void Close(const std::string& why);
  // Closes the receiver and drops what was not applied. Blocks while a record is being applied.
  void Drop(const std::string& why);
  // Calls `done` once everything that is stored is applied, with the error if that was not possible. Call
  // Close before. `done` runs on the receiver's thread or in this call.
  void ApplyAll(std::function<void(const absl::Status&)> done);
  State state() const;

  // Tells a reader of the tables what it may rely on.
  struct Read {
    uint64_t copy = 0;  // changes when the tables may be dropped or changed by others than this receiver
    // Every record that was in the primary's log this long ago is applied.
    absl::Duration lag;
  };
  // Returns how far the tables are behind the primary. A reader calls this before it finds its tables and
  // again before it reads their rows: if both calls return the same `copy`, the rows are those of that copy,
  // whatever happens afterwards. Asks the primary for more beats if `max_lag` needs them. Lock-free.
  //
  // The lag is measured by this process's clock alone: AppendRequest.echo returns a time that an earlier
  // answer has told, so all records from before that time are known to come before the message's position.
  // A message that lay somewhere while this process stood still therefore proves nothing newer.
  //
  // OutOfRange: the lag exceeds `max_lag`, or is not known: the copy is not complete, has not heard its
  // primary since it became complete, or takes over.
  absl::StatusOr<Read> CheckRead(absl::Duration max_lag);
  // Returns the present lag; infinite if it is not known. Lock-free.
  absl::Duration lag() const;

  // Handles one message of a link; `reply` gets the answer, perhaps later. Does not block for long: copies
  // the payload, unless it owns its memory, and takes its checksums. A message of an earlier term is not
  // stored, and answered with the larger one. Errors:
  //
  //   - NotFound: no link to that copy is open, or another primary has it
  //   - FailedPrecondition: the message is of another shard, or the copy could not apply an earlier record
  //   - InvalidArgument: the number is beyond the window, or the records are not those that come next
  //   - DataLoss: a record is damaged
  //   - Unavailable: Close was called
  //
  // A message with such an error is not stored. While too much is not applied, the answers say that less is
  // stored than is; those to beats say more later.
  void Append(const v1::AppendRequest& header, Bytes payload, rpc::Reply<v1::AppendResponse> reply);

  // Ends the thread; messages that wait are answered Unavailable. Idempotent.
  void Stop();

 private:
  using Reply = rpc::Reply<v1::AppendResponse>;
  // A message that is not stored, because an earlier one is missing.
  struct Early {
    Bytes payload;
    std::vector<Reply> replies;
  };
  // The records of a message, which refer to `bytes`.
  struct Stored {
    Slice bytes;
    std::vector<Record> records;
  };
  // The primary's log had `position` records at `time` of this process's clock, or later.
  struct Mark {
    uint64_t position = 0;
    int64_t time = 0;
  };
  // Functions to run once the mutex is free.
  using After = std::vector<std::function<void()>>;

  int64_t Now() const { return absl::ToUnixNanos(options_.boot_time()); }
  // Notes what a message of the open link tells about the primary's log.
  void MarkLocked(const v1::AppendRequest& header) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes note of the marks whose records are all applied.
  void RefreshLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Refuses reads until a mark of the copy that is opened next is applied.
  void EndReadsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Run();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !stored_.empty(); }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !applying_; }
  // Checks the records of the next message against what came before. Changes nothing.
  absl::Status CheckLocked(const std::vector<Record>& records) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Stores the next message, or nothing of it.
  absl::Status StoreLocked(const Bytes& payload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Acknowledges what is stored from now on, unless too much of it is not applied.
  void AcknowledgeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::AppendResponse ResponseLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RefuseAllLocked(const absl::Status& why, After* after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailLocked(const absl::Status& why, After* after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns "the copy ID of shard N", for messages.
  std::string Who() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Returns the payload in one piece, which owns its memory.
  Slice Contiguous(const Bytes& payload);

  const Options options_;
  ReceivedRecords& records_;
  BufferPool buffers_;  // for messages that came in several pieces

  mutable absl::Mutex mutex_;
  AppendFence fence_ ABSL_GUARDED_BY(mutex_);
  std::string why_closed_ ABSL_GUARDED_BY(mutex_) = "this copy has no primary yet";
  State state_ ABSL_GUARDED_BY(mutex_);
  bool has_state_ ABSL_GUARDED_BY(mutex_) = false;  // STATE is stored
  bool has_end_ ABSL_GUARDED_BY(mutex_) = false;    // END is stored
  LogTail tail_ ABSL_GUARDED_BY(mutex_);            // ends with stored_position
  uint64_t acknowledged_number_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t acknowledged_position_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time told_heard_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool readable_ ABSL_GUARDED_BY(mutex_) = false;   // the link is open
  std::deque<Mark> marks_ ABSL_GUARDED_BY(mutex_);  // in order; those whose records are not all applied
  // Readers take no lock and use these. fresh_ is Mark::time of the newest mark whose records are applied;
  // 0: no read is answered.
  std::atomic<uint64_t> copy_{0};
  std::atomic<int64_t> fresh_{0};
  // Readers have asked for a beat each beat_ns_ until the time wanted_until_.
  std::atomic<int64_t> beat_ns_{0};
  std::atomic<int64_t> wanted_until_{0};
  std::map<uint64_t, Early> early_ ABSL_GUARDED_BY(mutex_);  // by number
  std::deque<Stored> stored_ ABSL_GUARDED_BY(mutex_);        // and not applied
  std::vector<std::function<void(const absl::Status&)>> on_applied_ ABSL_GUARDED_BY(mutex_);
  bool applying_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Returns the method Append of tandem.v1.Failover over `receiver`, which must outlive it.
rpc::Method AppendMethod(Receiver* receiver);

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_RECEIVER_H_
