// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_TABLE_TABLE_H_
#define TANDEM_REPLAY_TABLE_TABLE_H_

// A replay table: items that refer to shared chunks, a sampler, a remover, budgets and a limiter.

#include <cstdint>
#include <deque>
#include <functional>
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
#include "replay/table/item_store.h"
#include "replay/table/table_options.h"

namespace tandem::replay {

// An item to insert.
struct NewItem {
  std::optional<double>
      priority;  // none: the largest priority so far given to an item of the table, at first 1
  std::shared_ptr<const Trajectory> trajectory;
};

// A sample: the items that were drawn, in the order of the draws. With replacement: an item may occur twice.
struct Sample {
  std::vector<SampledItem> items;
  uint64_t table_items = 0;  // in the table after the draws
  double mass = 0;           // Selector::mass after the draws
  // The limiter's counts after the draws.
  uint64_t inserts = 0, samples = 0;
};

// The size of the batch that a sampler asks for.
struct SampleSize {
  uint32_t batch = 1;      // the number of items, at least 1
  uint32_t min_batch = 0;  // the least number that is given instead of waiting for more; 0: `batch`
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
};

// The content of a table, for a checkpoint.
struct TableSnapshot {
  TableOptions options;
  std::vector<Column> columns;
  std::vector<ItemStore::Item> items;  // by serial
  uint64_t serial = 0, draws = 0;
  double max_priority = 1;
  uint64_t inserts = 0, samples = 0, credited = 0;
};

// A table. Thread-safe; one mutex protects it, and nothing is copied under it. Calls that wait hold no thread
// unless they are the blocking ones; they are served first come, first served, inserts apart from samples.
class Table {
 public:
  // `done` of an asynchronous insert: with OK, all items are in the table; otherwise the first `inserted`
  // are.
  using InsertDone = absl::AnyInvocable<void(absl::Status, size_t inserted) &&>;
  using SampleDone = absl::AnyInvocable<void(absl::StatusOr<Sample>) &&>;
  // Connects an insert with what must change together with the table, under the table's lock. Must not block,
  // nor call the table.
  struct InsertHooks {
    // Runs before items are inserted. Returns how many of the items are in the table already, or an error,
    // which ends the insert. May be empty.
    std::function<absl::StatusOr<size_t>()> begin;
    // Runs after items have been inserted, with the number of all that are in the table now. May be empty.
    std::function<void(size_t inserted)> progress;
  };

  // Errors: those of CheckTableOptions. `clock` must outlive the table.
  static absl::StatusOr<std::shared_ptr<Table>> Create(const TableOptions& options,
                                                       Clock* clock = Clock::Real());
  // Makes a table with the content of a checkpoint. InvalidArgument: the snapshot is inconsistent.
  static absl::StatusOr<std::shared_ptr<Table>> Restore(TableSnapshot snapshot, Clock* clock = Clock::Real());
  ~Table();

  const std::string& name() const { return name_; }

  // Inserts items, each as soon as the limiter permits it, in order. Blocks until all are in the table or
  // `deadline` has passed. Sets `inserted`, if given, to the number of items that are in the table. `client`
  // names the caller in reports. Errors, which begin with the table's name:
  //
  // - InvalidArgument: an item is not well formed, has a priority that is negative or not finite, or columns
  //   other than the table's. Nothing has been inserted.
  // - ResourceExhausted: an item alone exceeds max_bytes. Nothing has been inserted.
  // - DeadlineExceeded: the message says why the table takes no inserts.
  // - Cancelled: Stop was called.
  absl::Status Insert(std::vector<NewItem> items, absl::string_view client = "",
                      absl::Time deadline = absl::InfiniteFuture(), size_t* inserted = nullptr);
  // Draws items. Blocks until the limiter permits size.min_batch of them, or `deadline` has passed. Errors:
  //
  // - InvalidArgument: a batch of 0, a min_batch above it, or one larger than the table can ever give
  // - DeadlineExceeded: the message says why the table gives no samples
  // - Cancelled: Stop was called
  absl::StatusOr<Sample> SampleItems(const SampleSize& size, absl::string_view client = "",
                                     absl::Time deadline = absl::InfiniteFuture());

  // Do the same without blocking. `done` runs exactly once, without locks: in this call, or later in the call
  // that lets it proceed or ends it. Return 0 if `done` has run, else a ticket for Expire and Cancel.
  uint64_t StartInsert(std::vector<NewItem> items, absl::string_view client, InsertHooks hooks,
                       InsertDone done);
  uint64_t StartSample(const SampleSize& size, absl::string_view client, SampleDone done);
  // End a call that waits: with DeadlineExceeded and the reason why it had to wait, or with `status`. No
  // effect if it has ended.
  void Expire(uint64_t ticket);
  void Cancel(uint64_t ticket, const absl::Status& status);

  // Changes the priorities of items; those that have left the table are skipped. Returns the number changed.
  // InvalidArgument: numbers of keys and priorities differ, or a priority is negative, not finite or too
  // large; nothing has changed.
  absl::StatusOr<uint64_t> UpdatePriorities(absl::Span<const uint64_t> keys,
                                            absl::Span<const double> priorities);

  // Changes limit and budgets while the table is in use: runs the calls that may now proceed, and removes
  // items that exceed a budget. InvalidArgument as of Create; nothing has changed.
  absl::Status SetLimits(const RateLimit& limit, uint64_t max_items, uint64_t max_bytes);
  // Removes all items and sets the limiter's counts to 0. Keys are not used again.
  void Reset();

  TableInfo Info() const;
  // Returns up to `count` items in the order of their slots, from slot `*next` on, without counting them as
  // samples. Sets `*next` to where to continue; 0: there are no more.
  std::vector<ItemStore::Item> Peek(uint32_t count, uint32_t* next) const;
  // Returns the content. Takes tens of milliseconds for a million items, during which the table is locked;
  // chunks are shared, not copied. Calls `locked` meanwhile, for what must be saved at the same moment; it
  // must not block, nor call the table.
  TableSnapshot Snapshot(absl::FunctionRef<void()> locked = [] {}) const;
  // Returns the columns of items; nullptr before they are known.
  std::shared_ptr<const Signature> signature() const;

  // Ends all waiting calls, and all later ones, with Cancelled. Idempotent.
  void Stop();

 private:
  struct WaitingInsert {
    uint64_t ticket;
    std::vector<NewItem> items;
    size_t next;  // the number of items that are in the table
    std::string client;
    InsertHooks hooks;
    absl::Time since;
    InsertDone done;
    absl::Status status;
    bool begun;  // hooks.begin has run
  };
  struct WaitingSample {
    uint64_t ticket;
    SampleSize size;
    std::string client;
    absl::Time since;
    SampleDone done;
    absl::StatusOr<Sample> result;
  };
  // The work that is left until the lock is released: calls to finish, memory to free.
  struct Finished;

  Table(const TableOptions& options, Clock* clock);

  absl::Status CheckItems(absl::Span<const NewItem> items) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckSize(const SampleSize& size) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Inserts what the limiter permits. Returns true if the call is over.
  bool Run(WaitingInsert& insert) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Draws the sample if the limiter permits it. Returns true if the call is over.
  bool Run(WaitingSample& sample) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs waiting calls until none of them can proceed.
  void Pump(Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(uint64_t ticket, const std::optional<absl::Status>& status);
  std::string WhyNoInsert() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string WhyNoSample(uint64_t batch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t Available() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_;
  Clock* const clock_;
  mutable absl::Mutex mutex_;
  TableOptions options_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Signature> signature_ ABSL_GUARDED_BY(mutex_);  // nullptr: not known yet
  // The last layout that was found to match the signature.
  std::shared_ptr<const ItemLayout> checked_layout_ ABSL_GUARDED_BY(mutex_);
  ItemStore store_ ABSL_GUARDED_BY(mutex_);
  RateLimiter limiter_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<WaitingInsert>> inserts_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<WaitingSample>> samples_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  // Counts over all resets.
  uint64_t total_inserts_ ABSL_GUARDED_BY(mutex_) = 0, total_samples_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t updates_ ABSL_GUARDED_BY(mutex_) = 0, missed_updates_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration insert_wait_ ABSL_GUARDED_BY(mutex_), sample_wait_ ABSL_GUARDED_BY(mutex_);
  std::string last_inserter_ ABSL_GUARDED_BY(mutex_), last_sampler_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_insert_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time last_sample_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_TABLE_TABLE_H_
