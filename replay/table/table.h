// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_TABLE_TABLE_H_
#define TANDEM_REPLAY_TABLE_TABLE_H_

// A replay table: items that refer to shared chunks, a sampler, a remover, budgets and a limiter.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "replay/chunks/trajectory.h"
#include "replay/limiter/rate_limiter.h"
#include "replay/staleness/pace.h"
#include "replay/staleness/ticket.h"
#include "replay/staleness/version_clock.h"
#include "replay/table/default_deadline.h"
#include "replay/table/item_store.h"
#include "replay/table/table_options.h"

namespace tandem::replay {

// An item to insert.
struct NewItem {
  // None: the largest priority so far given to an item of the table, at first 1.
  std::optional<double> priority;
  std::shared_ptr<const Trajectory> trajectory;
  uint64_t ticket = 0;  // with StalenessKind::kPace: Ticket::id, which is used up; else ignored
};

// A sample: the items that were drawn, in the order of the draws. With replacement: an item may occur twice.
struct Sample {
  std::vector<SampledItem> items;
  uint64_t table_items = 0;  // in the table before the first draw
  double mass = 0;           // Selector::mass then
  // The committed version of the policy; nullopt: none has been committed. An item's lag is the difference
  // to its min_version.
  std::optional<int64_t> committed_version;
  // The limiter's counts after the draws.
  uint64_t inserts = 0, samples = 0;
};

// The size of the batch that a sampler asks for.
struct SampleSize {
  uint32_t batch = 1;      // the number of items, at least 1
  uint32_t min_batch = 0;  // the least number that is given instead of waiting for more; 0: `batch`
  uint64_t max_bytes = 0;  // the largest number of bytes of the values of all items; 0: no limit

  // Returns the least number of items.
  uint32_t least() const { return min_batch == 0 ? batch : min_batch; }
};

// The lag and the rollouts of a table, for reports.
struct StalenessInfo {
  // Sampled items by their lag in versions: lags[i] had lag i, the last element counts larger ones.
  static constexpr size_t kLags = 17;
  std::array<uint64_t, kLags> lags = {};
  int64_t largest_lag = 0;
  std::optional<CommittedVersion> head;
  uint64_t commits = 0;
  // The following are for StalenessKind::kPace.
  uint64_t running = 0;  // rollouts with a ticket
  Pace::Counts tickets;
  uint64_t waiting_admits = 0;
  double admit_wait_seconds = 0;  // of calls that are over
  std::string oldest_actor;       // of the oldest running rollout
  absl::Duration oldest_age = absl::ZeroDuration();
  std::string why_not_admitted;  // why a rollout would not be admitted now; empty if it would
};

// The state of a table, for reports.
struct TableInfo {
  TableOptions options;
  std::vector<Column> columns;  // empty: not known yet
  uint64_t items = 0, bytes = 0;
  double mass = 0;
  // Counts since the table was created or reset.
  uint64_t inserts = 0, samples = 0, credited = 0;
  double diff = 0;  // of the limiter
  // RateLimiter::lowest_diff and highest_diff.
  double lowest_diff = std::numeric_limits<double>::infinity();
  double highest_diff = -std::numeric_limits<double>::infinity();
  // Counts since the table was created.
  Removals removals;
  uint64_t total_inserts = 0, total_samples = 0;
  uint64_t priority_updates = 0;         // of present items
  uint64_t missed_priority_updates = 0;  // of items that had left
  uint64_t waiting_inserts = 0, waiting_samples = 0;
  double insert_wait_seconds = 0, sample_wait_seconds = 0;  // of calls that are over
  std::string last_inserter, last_sampler;                  // "": none yet
  absl::Duration since_insert = absl::InfiniteDuration(), since_sample = absl::InfiniteDuration();
  // Why an insert, or a sample of one item, would wait now; empty if it would not.
  std::string why_no_insert, why_no_sample;
  StalenessInfo staleness;
  uint64_t server_incarnation = 0;  // another one after each start of its server; 0 without a server
};

// The content of a table, for a checkpoint.
struct TableSnapshot {
  TableOptions options;
  TableOptions created;  // see Table::created_options
  std::vector<Column> columns;
  std::vector<ItemStore::Item> items;  // by serial
  uint64_t serial = 0, draws = 0;
  double max_priority = 1;
  uint64_t inserts = 0, samples = 0, credited = 0;
  double limiter_offset = 0;
  ItemStore::Order order;
  VersionClock::State versions;
  // The following are for StalenessKind::kPace: the position of the next sample, the last ticket, and the
  // number of commits when the tickets of `items` were granted, by item.
  uint64_t position = 0, last_ticket = 0;
  std::vector<uint64_t> item_commits;
};

// A table. Thread-safe; one mutex protects it, and nothing is copied under it. Calls that wait hold no thread
// unless they are the blocking ones; they are served first come, first served, inserts apart from samples.
class Table {
 public:
  // `done` of an asynchronous insert: with OK, all items are in the table; otherwise the first `inserted`
  // are.
  using InsertDone = absl::AnyInvocable<void(absl::Status, size_t inserted) &&>;
  using SampleDone = absl::AnyInvocable<void(absl::StatusOr<Sample>) &&>;
  using AdmitDone = absl::AnyInvocable<void(absl::StatusOr<std::vector<Ticket>>) &&>;
  // Connects an insert with what must change together with the table, under the table's lock. Must not block,
  // nor call the table.
  struct InsertHooks {
    // Runs before items are inserted. Returns how many of the items are in the table already, or an error,
    // which ends the insert. May be empty.
    std::function<absl::StatusOr<size_t>()> begin;
    // Runs after items have been inserted, with the number of all that are in the table now. May be empty.
    std::function<void(size_t inserted)> progress;
  };

  // Errors: those of CheckTableOptions. `clock` must outlive the table. The serials of items begin above
  // `first_serial`. Keys are made of serials: a table that takes the place of one which is lost needs another
  // `first_serial`, or priorities for items of the lost one would meet its own.
  static absl::StatusOr<std::shared_ptr<Table>> Create(const TableOptions& options,
                                                       Clock* clock = Clock::Real(),
                                                       uint64_t first_serial = 0);
  // Makes a table with the content of a checkpoint. InvalidArgument: the snapshot is inconsistent.
  static absl::StatusOr<std::shared_ptr<Table>> Restore(TableSnapshot snapshot, Clock* clock = Clock::Real());
  ~Table();

  const std::string& name() const { return created_.name; }
  // Returns the options that the table was created with. SetLimits changes those in use (Info).
  const TableOptions& created_options() const { return created_; }
  // Returns the `first_serial` of Create; 0 after Restore.
  uint64_t first_serial() const { return first_serial_; }

  // Inserts items, each as soon as the limiter permits it, in order. Blocks until all are in the table or
  // `deadline` has passed. Sets `inserted`, if given, to the number of items that are in the table. `client`
  // names the caller in reports. Errors, which begin with the table's name:
  //
  // - InvalidArgument: an item is not well formed, has a priority that is negative or not finite, or columns
  //   other than the table's. Nothing has been inserted.
  // - ResourceExhausted: an item alone exceeds max_bytes. Nothing has been inserted.
  // - DeadlineExceeded: the message says why the table takes no inserts.
  // - Cancelled, or the status of Stop: it was called.
  //
  // With StalenessKind::kPace, inserts never wait, and an item whose ticket is missing (InvalidArgument), too
  // new for its steps (InvalidArgument) or not in use any more (NotFound) is left out; the others
  // are inserted. `inserted` then counts all of them.
  absl::Status Insert(std::vector<NewItem> items, absl::string_view client = "",
                      absl::Time deadline = DefaultDeadline(), size_t* inserted = nullptr);
  // Draws items. Blocks until the limiter permits size.min_batch of them, or `deadline` has passed. Errors:
  //
  // - InvalidArgument: a batch of 0, a min_batch above it, or one larger than the table can ever give
  // - DeadlineExceeded: the message says why the table gives no samples
  // - ResourceExhausted: a batch of size.min_batch would exceed size.max_bytes. Nothing has been drawn.
  // - Cancelled: Stop was called
  absl::StatusOr<Sample> SampleItems(const SampleSize& size, absl::string_view client = "",
                                     absl::Time deadline = DefaultDeadline());

  // Grants tickets for rollouts, all that are asked for at the same time. Grants fewer, at least one, if a
  // sample waits and no rollout runs: the learner and the caller would otherwise wait for each other. Blocks
  // until the learners have consumed enough, or `deadline`. Errors:
  //
  // - FailedPrecondition: the table does not have StalenessKind::kPace, or another process has taken over
  //   the actor's name
  // - InvalidArgument: a count of 0, or more than the table can ever admit
  // - DeadlineExceeded: the message says why no rollout is admitted
  // - Cancelled: Stop was called
  absl::StatusOr<std::vector<Ticket>> Admit(const AdmitRequest& request,
                                            absl::Time deadline = DefaultDeadline());
  // Renews the leases of tickets. Returns how many of them are in use; the others have ended.
  uint64_t Renew(absl::Span<const uint64_t> tickets);
  // Gives back tickets that will not be used. Returns how many of them were in use.
  uint64_t ReturnTickets(absl::Span<const uint64_t> tickets);
  // Says that learners have published a version; see VersionClock::Commit for errors. Lets rollouts be
  // admitted, and removes items that are now too old.
  absl::Status Commit(const CommittedVersion& version);

  // Do the same without blocking. `done` runs exactly once, without locks: in this call, or later in the call
  // that lets it proceed or ends it. Return 0 if `done` has run, else the call's number, for Expire and
  // Cancel.
  uint64_t StartInsert(std::vector<NewItem> items, absl::string_view client, InsertHooks hooks,
                       InsertDone done);
  uint64_t StartSample(const SampleSize& size, absl::string_view client, SampleDone done);
  uint64_t StartAdmit(const AdmitRequest& request, AdmitDone done);
  // End a call that waits: with DeadlineExceeded and the reason why it had to wait, or with `status`. No
  // effect if it has ended.
  void Expire(uint64_t call);
  void Cancel(uint64_t call, const absl::Status& status);

  // Ends tickets and removes items whose time is over, and runs the calls that may then proceed. Blocking
  // calls do so themselves while they wait. To be called every tick_period().
  void Tick();
  // Returns a quarter of the lease or ttl, at most a second; InfiniteDuration if there is neither.
  absl::Duration tick_period() const { return tick_period_; }

  // Changes the priorities of items; those that have left the table are skipped. Returns the number changed.
  // InvalidArgument: numbers of keys and priorities differ, or a priority is negative, not finite or too
  // large; nothing has changed.
  absl::StatusOr<uint64_t> UpdatePriorities(absl::Span<const uint64_t> keys,
                                            absl::Span<const double> priorities);

  // Changes limit and budgets while the table is in use: runs the calls that may now proceed, and removes
  // items that exceed a budget. InvalidArgument as of Create; nothing has changed.
  absl::Status SetLimits(const RateLimit& limit, uint64_t max_items, uint64_t max_bytes);
  // Removes all items and sets the limiter's counts to 0. Ends all tickets and forgets the committed version:
  // with StalenessKind::kPace, rollouts are admitted once a learner has committed again. Keys are not used
  // again.
  void Reset();

  // Sets the function that says whether actors can pull a committed version (ReplayServerOptions).
  void set_find_weights(std::function<absl::StatusOr<std::string>(const CommittedVersion&)> find);
  // Returns what it says of the last commit; "" if there is no function, or no commit.
  absl::StatusOr<std::string> FindWeights() const;

  TableInfo Info() const;
  // Returns up to `count` items in the order of their slots, from slot `*next` on, without counting them as
  // samples. Sets `*next` to where to continue; 0: there are no more.
  std::vector<ItemStore::Item> Peek(uint32_t count, uint32_t* next) const;
  // Returns the content. Takes tens of milliseconds for a million items, during which the table is locked;
  // chunks are shared, not copied. Calls `locked` meanwhile, for what must be saved at the same moment; it
  // must not block, nor call the table.
  TableSnapshot Snapshot(absl::FunctionRef<void()> locked = [] {}) const;
  // Returns whether items may leave though none are inserted: there are some, and they have a ttl, or leave
  // by samples or commits and the last sample did not find too few of them.
  bool MayLoseItems() const;
  // Returns the columns of items; nullptr before they are known.
  std::shared_ptr<const Signature> signature() const;

  // Ends all waiting calls, and all later ones, with Cancelled, or with `status`. The content stays, and can
  // be saved. Idempotent.
  void Stop(absl::Status status = absl::CancelledError("it has been stopped"));

 private:
  struct WaitingInsert {
    uint64_t call = 0;
    std::vector<NewItem> items;
    size_t next = 0;  // the number of items that are in the table, or left out
    std::string client;
    InsertHooks hooks;
    absl::Time since;
    InsertDone done;
    absl::Status status;
    bool begun = false;  // hooks.begin has run
  };
  struct WaitingSample {
    uint64_t call = 0;
    SampleSize size;
    std::string client;
    absl::Time since;
    SampleDone done;
    absl::StatusOr<Sample> result;
  };
  struct WaitingAdmit {
    uint64_t call = 0;
    AdmitRequest request;
    absl::Time since;
    AdmitDone done;
    absl::StatusOr<std::vector<Ticket>> result;
  };
  // The work that is left until the lock is released: calls to finish, memory to free.
  struct Finished;

  // `created`: see created_options.
  Table(const TableOptions& options, const TableOptions& created, Clock* clock, uint64_t first_serial);

  absl::Status CheckItems(absl::Span<const NewItem> items) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckSize(const SampleSize& size) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckAdmit(const AdmitRequest& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Inserts what the limiter permits. Returns true if the call is over.
  bool Run(WaitingInsert& insert) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Draws the sample if the limiter permits it. Returns true if the call is over.
  bool Run(WaitingSample& sample) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Grants the tickets if they may be. Returns true if the call is over.
  bool Run(WaitingAdmit& admit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers a request that is refused, or a repeated one. Returns true if the call is over.
  bool AnswerGranted(WaitingAdmit& admit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Inserts one item that the limiter permits. An error says why it was left out.
  absl::Status InsertOne(NewItem item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Draws `n` items and counts them. Requires that `n` samples may be taken.
  void Draw(size_t n, std::vector<SampledItem>* items) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Does what is left to do after items have been removed: credits, tickets.
  void AfterRemovals() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends tickets and removes items that are too old.
  void RemoveOld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the items that pace_ does not permit to be sampled any more. Requires pace_.
  void RemoveTooOld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs waiting calls until none of them can proceed.
  void Pump(Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(uint64_t call, const std::optional<absl::Status>& status);
  std::string WhyNoInsert() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string WhyNoSample(uint64_t batch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string WhyNotAdmitted(uint32_t count) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  StalenessInfo InfoOfStaleness() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns "; ..." if the weights of the last commit are missing, else "".
  std::string MissingWeights() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns how many of the next `n` draws fit into size.max_bytes. ResourceExhausted: not even the smallest
  // batch that `size` permits.
  absl::StatusOr<uint64_t> Fitting(uint64_t n, const SampleSize& size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t Available() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TableOptions created_;
  Clock* const clock_;
  const uint64_t first_serial_;
  const absl::Duration tick_period_;
  mutable absl::Mutex mutex_;
  TableOptions options_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Signature> signature_ ABSL_GUARDED_BY(mutex_);  // nullptr: not known yet
  // The last layout that was found to match the signature.
  std::shared_ptr<const ItemLayout> checked_layout_ ABSL_GUARDED_BY(mutex_);
  ItemStore store_ ABSL_GUARDED_BY(mutex_);
  RateLimiter limiter_ ABSL_GUARDED_BY(mutex_);
  VersionClock versions_ ABSL_GUARDED_BY(mutex_);
  std::function<absl::StatusOr<std::string>(const CommittedVersion&)> find_weights_ ABSL_GUARDED_BY(mutex_);
  const std::unique_ptr<Pace> pace_ ABSL_PT_GUARDED_BY(mutex_);  // nullptr without StalenessKind::kPace
  std::deque<std::unique_ptr<WaitingInsert>> inserts_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<WaitingSample>> samples_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<WaitingAdmit>> admits_ ABSL_GUARDED_BY(mutex_);
  // The least number of items that the last sample asked for, if it had to wait; 0 after a draw.
  uint64_t short_batch_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);  // not OK: Stop was called
  uint64_t next_call_ ABSL_GUARDED_BY(mutex_) = 1;
  // Counts over all resets.
  uint64_t total_inserts_ ABSL_GUARDED_BY(mutex_) = 0, total_samples_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t updates_ ABSL_GUARDED_BY(mutex_) = 0, missed_updates_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration insert_wait_ ABSL_GUARDED_BY(mutex_), sample_wait_ ABSL_GUARDED_BY(mutex_);
  absl::Duration admit_wait_ ABSL_GUARDED_BY(mutex_);
  StalenessInfo lags_ ABSL_GUARDED_BY(mutex_);  // only its lags
  std::string last_inserter_ ABSL_GUARDED_BY(mutex_), last_sampler_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_insert_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time last_sample_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_TABLE_TABLE_H_
