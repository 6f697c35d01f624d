// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_SHIPPED_LOG_H_
#define TANDEM_PS_FAILOVER_SHIPPED_LOG_H_

// The log of a primary whose followers make it durable: records are sent to every linked copy, and a record
// is durable when every copy of the wait set (ps/failover/wait_set.h) has stored it. The log itself keeps
// only what a linked copy still lacks, and for some seconds after a takeover the newest records, for
// followers of the earlier primary.
//
// One thread encodes the records (ps/log/record.h), puts those that wait together into messages of about
// 1 MiB, and sends these on all links (Failover.Append). At most 16 messages of a link are in flight. A
// message whose call fails is sent again under its number. A link without traffic sends a beat every 100 ms,
// or as often as its copy wants because it is read (AppendResponse.beat_ms).
//
// shipped_log.cc has the records and the wait set, shipped_log_links.cc the links' beginning, copying and
// end, shipped_log_sending.cc the thread and what copies answer.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/buffer_pool.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "ps/failover/lineage.h"
#include "ps/failover/link.h"
#include "ps/failover/log_tail.h"
#include "ps/failover/placement.h"
#include "ps/failover/wait_set.h"
#include "ps/log/change_log.h"
#include "ps/log/record.h"
#include "rpc/channel.h"

namespace tandem::ps {

// The state of the link to one copy. A plain value.
struct LinkState {
  Copy copy;
  bool complete = false;   // the copy is whole
  bool continued = false;  // it went on with the tables that it had
  uint64_t stored_position = 0;
  uint64_t applied_position = 0;
  uint64_t unsent_bytes = 0;  // of records that the copy has not stored
  // The time at which the last message that the copy has answered was sent; the copy was alive then.
  absl::Time heard;
};

// The functions that tell what happens to links. All run without locks, on a thread of the log or of a
// channel, or within a call of Require or FailLink. They must not block, and may call the log's functions
// except Stop. One may still run shortly after DropLink has returned.
struct LinkEvents {
  // The copy has stored END or CONTINUE: it may become a follower. From Require on, pushes wait for it when
  // it is slow.
  std::function<void(const std::string& id)> on_complete;
  // After Require: the copy has stored everything that was durable when Require was called.
  std::function<void(const std::string& id)> on_caught_up;
  // The copy has answered a message that was sent at `sent`. Called at most every 20 ms for each link.
  std::function<void(const std::string& id, const ClockReading& sent)> on_heard;
  // The copy knows a larger term: this primary is deposed.
  std::function<void(const std::string& id, uint64_t term)> on_higher_term;
  // The link has ended and sends nothing any more: the copy does not exist (NotFound), it refused a message
  // (the error says why), it was silent for max_silence (DeadlineExceeded), or its unsent records exceeded
  // max_link_bytes (ResourceExhausted). The last two only happen outside of the wait set. DropLink it.
  std::function<void(const std::string& id, const absl::Status& why)> on_gone;
};

// Thread-safe. The destructor calls Stop.
class ShippedLog : public ChangeLog {
 public:
  struct Options {
    uint32_t shard = 0;
    uint64_t term = 0;
    std::string primary;                             // id of the primary's copy
    uint64_t first_position = 1;                     // of the first record that is appended
    int min_copies = 1;                              // of WaitSet
    uint64_t max_queued_bytes = uint64_t{64} << 20;  // of records that are not durable; pushes wait then
    uint64_t max_link_bytes = uint64_t{64} << 20;    // of records that a link has not sent
    size_t message_bytes = size_t{1} << 20;          // about the size of a message
    size_t max_in_flight = 16;                       // messages of a link
    absl::Duration beat = absl::Milliseconds(100);   // the longest time between messages or beats of a link
    // A follower that has not been heard for so long may have taken over (AppendRequest.leads).
    absl::Duration lease = absl::Seconds(2);
    std::function<absl::Time()> boot_time = BootTimeNow;  // the clock of the lease
    absl::Duration call_timeout =
        absl::Seconds(2);  // of an attempt to deliver a message, and 1 s more for 8 MiB
    // After this time without an answer the link to a copy that is not in the wait set ends.
    absl::Duration max_silence = absl::Seconds(30);
    Lineage base = {};          // what this primary had when it took over; for ContinueLink
    std::string continue_body;  // of CONTINUE
    absl::Duration keep_tail = absl::Seconds(10);
    uint64_t max_tail_bytes = uint64_t{64} << 20;
    // After this time without progress waiting_for says what records wait for.
    absl::Duration unusual = absl::Milliseconds(500);
    LinkEvents events;
  };
  // `tail`: the last records up to options.base.
  explicit ShippedLog(Options options, LogTail tail = LogTail(0));
  ~ShippedLog() override;

  // Begins a link to `copy` over `channel`. The link sends nothing but beats until BeginCopy. The copy is
  // not in the wait set. Returns false, and does nothing, if the copy has a link. Cancelled after Stop.
  // `begin`, which may be empty, runs once at `begin_at` (of MonotonicNow()) on the log's thread if the link
  // exists then; it must not block.
  absl::StatusOr<bool> StartLink(const Copy& copy, std::unique_ptr<rpc::Channel> channel,
                                 absl::Time begin_at = absl::InfinitePast(),
                                 std::function<void()> begin = nullptr);
  // Returns whether a link to a copy with `held` needs no copying (ps/failover/lineage.h): all records behind
  // held.position are at hand, which is so for keep_tail after a takeover.
  bool CanContinue(const Lineage& held) const;
  // Does what StartLink does, for a copy that needs no copying: sends it the records behind `held`.
  // FailedPrecondition: CanContinue is false.
  absl::StatusOr<bool> ContinueLink(const Copy& copy, std::unique_ptr<rpc::Channel> channel,
                                    const Lineage& held);
  // Says that the tables have changed without a record. Takes one position, which no copy that was linked
  // before has or will have, and ends all links.
  void SkipPosition();
  // Ends the link. Does nothing if there is none. The copy must not be in the wait set any more: call Release
  // first. Does not block; the channel is destroyed on the log's thread.
  void DropLink(const std::string& id);

  // The copying of a linked copy (ps/failover/copying.h calls these). NotFound: there is no such link.
  //
  // Makes the link deliver every record that is appended from now on, after the state. Returns the position
  // of the last record before. Must be called between pushes, and the state be captured before the next push.
  absl::StatusOr<uint64_t> BeginCopy(const std::string& id);
  // Puts the state, a record that is already encoded, at the beginning of the link's stream.
  absl::Status SendState(const std::string& id, std::string state);
  // Puts the records that `encode` returns, of rows, behind the records that were appended so far. The rows
  // must be of a moment at which no push is under way, and this call come before the next push. `encode` runs
  // on the log's thread. `sent` runs once the link has sent them all, on a thread of the log, or with an
  // error when the link ends; must not block.
  absl::Status SendCopied(const std::string& id, std::function<std::vector<std::string>()> encode,
                          std::function<void(const absl::Status&)> sent);
  // Sends END: the copy has been sent everything.
  absl::Status EndCopy(const std::string& id);
  // Ends the link with `why`, for on_gone, because the copying has failed. No effect without a link.
  void FailLink(const std::string& id, const absl::Status& why);

  // The wait set: the copies that must store a record before it is durable. It must contain the copies that
  // the placement document names as in_sync.
  //
  // Adds a linked copy; on_caught_up follows. NotFound: there is no such link.
  absl::Status Require(const std::string& id);
  // Removes a copy. What only that copy had not stored becomes durable. No effect if it is not in the set.
  void Release(const std::string& id);
  // Says how many followers the document names as in sync (WaitSet::Confirm).
  void Confirm(size_t in_sync);

  // Says whether messages may claim that this primary has no successor (AppendRequest.leads); true at first.
  // Must be false before another copy is told to take over, and while this server does not serve. Without
  // that claim followers answer no reads.
  void SetMayLead(bool may_lead);

  // Returns the state of all links.
  std::vector<LinkState> links() const;
  // Returns the last position that is durable.
  uint64_t durable_position() const;
  uint64_t term() const { return options_.term; }

  uint64_t Append(RecordKind kind, Bytes body, std::shared_ptr<Space> space, Durable durable) override;
  void WhenDurable(Durable durable) override;
  uint64_t last_position() const override;
  absl::Status status() const override;
  std::string waiting_for() const override;

  // Ends all links and the thread. Records that are not durable fail with Unavailable, and so do later ones.
  // Frees most memory. Idempotent. Blocks until the calls under way have ended. Must not be called from an
  // event.
  void Stop();

 private:
  // A link and its channel, which the log's thread alone uses and destroys.
  struct Link {
    Link(Copy copy, std::unique_ptr<rpc::Channel> channel, const Options& options)
        : copy(std::move(copy)),
          channel(std::move(channel)),
          stream(options.message_bytes, options.max_in_flight),
          beat(options.beat) {}
    const Copy copy;
    std::unique_ptr<rpc::Channel> channel;
    // ShippedLog::mutex_ guards the rest.
    absl::Time begin_at;
    std::function<void()> begin;  // empty once it has run
    LinkStream stream;
    bool continues = false;  // by ContinueLink
    bool dropped = false;    // by DropLink, or by Stop
    bool gone = false;       // it has ended by itself
    bool completed = false;  // on_complete was called
    bool caught_up = true;   // on_caught_up was called since Require
    bool beat_under_way = false;
    absl::Duration beat;  // how often the link sends something
    uint64_t echo = 0;    // the largest AppendResponse.clock
    int failures = 0;     // in a row; calls that fail together are one
    absl::Time failed_at = absl::InfinitePast();
    uint64_t stored_position = 0;
    uint64_t applied_position = 0;
    absl::Time last_sent = absl::InfinitePast();  // of a message
    absl::Time heard;
    absl::Time lease_from;                         // the same moment as `heard`, on the boot clock
    absl::Time told_heard = absl::InfinitePast();  // on_heard was called
  };
  // The unit that the thread encodes: a record, records of a copy, or the beginning or end of a copy.
  struct Entry {
    RecordKind kind = RecordKind::kPush;
    uint64_t position = 0;
    Bytes body;
    std::shared_ptr<Link> only;  // nullptr: for all live links
    bool begins = false;         // makes the link live
    bool continues = false;      // the link begins behind `position`, and has no state
    std::function<std::vector<std::string>()> copied;
    LinkStream::Sent sent;
  };
  // A record, or a call of WhenDurable, that is not durable.
  struct Waiting {
    uint64_t position = 0;
    std::shared_ptr<Space> space;
    Durable durable;
  };
  // Functions to run once the mutex is free.
  using After = std::vector<std::function<void()>>;
  static void RunAll(const After& after);

  absl::StatusOr<bool> AddLink(std::shared_ptr<Link> link, const Lineage* held) ABSL_LOCKS_EXCLUDED(mutex_);
  bool CanContinueLocked(const Lineage& held) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Puts what a copy lacks that has the records up to `held` into its stream.
  void ContinueLocked(const std::shared_ptr<Link>& link, uint64_t held, After* after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || wake_ || !queue_.empty(); }
  // Returns when the thread has something to do that nobody wakes it for.
  absl::Time NextWake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Encodes what waits, at most about one message.
  void Encode(std::deque<Entry> entries, uint64_t durable) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends what can be sent on all links.
  void Send() ABSL_LOCKS_EXCLUDED(mutex_);
  // Describes the log at the moment at which messages are chosen.
  struct Moment {
    uint64_t position = 0;
    uint64_t durable = 0;
    bool leads = false;
  };
  void SendMessage(const std::shared_ptr<Link>& link, uint64_t number, Bytes payload, const Moment& moment,
                   uint64_t echo) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnAnswer(const std::shared_ptr<Link>& link, uint64_t number, const ClockReading& sent,
                absl::StatusOr<Bytes> answer) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndLinkLocked(const std::shared_ptr<Link>& link, const absl::Status& why, After* after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Link> FindLocked(const std::string& id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<Link>> LinkOfLocked(const std::string& id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether every copy of the wait set was heard within the lease, so that none can have taken over.
  bool LeadsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notes what a copy has stored.
  void StoredLocked(const std::shared_ptr<Link>& link, After* after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Collects what has become durable.
  void AdvanceLocked(After* after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  BufferPool buffers_;  // for encoded records
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_position_ ABSL_GUARDED_BY(mutex_);
  uint64_t durable_position_ ABSL_GUARDED_BY(mutex_) = 0;
  WaitSet wait_set_ ABSL_GUARDED_BY(mutex_);
  bool may_lead_ ABSL_GUARDED_BY(mutex_) = true;
  size_t confirmed_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Entry> queue_ ABSL_GUARDED_BY(mutex_);
  LogTail tail_ ABSL_GUARDED_BY(mutex_);                 // ends with the last record that was encoded
  absl::Time tail_until_ ABSL_GUARDED_BY(mutex_);        // InfinitePast: there is none
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // in the order of their positions
  // When waiting_ became non-empty, or the first of it last became durable.
  absl::Time waiting_since_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Link>> links_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Link>> dropped_ ABSL_GUARDED_BY(mutex_);  // whose channels are to be destroyed
  bool wake_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_SHIPPED_LOG_H_
