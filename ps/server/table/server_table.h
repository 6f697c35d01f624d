// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_TABLE_SERVER_TABLE_H_
#define TANDEM_PS_SERVER_TABLE_SERVER_TABLE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/buffer_pool.h"
#include "base/copy_choice.h"
#include "ps/server/table/row_staleness_meter.h"
#include "ps/server/table/statistics.h"
#include "ps/server/table/table_push.h"
#include "ps/server/table/update_order.h"
#include "ps/storage/table_storage.h"
#include "tandem/v1/checkpoint.pb.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::v1 {
class SnapshotTable;
}

namespace tandem::ps {

class ReplayFilter;

// One table of a running server: its rows, the pushes that wait to be applied, and the pulls that wait for
// pushes. update_order.h has the rules for both. Thread-safe; shared by the requests that use it.
class ServerTable {
 public:
  // Runs a waiting pull, which then asks all its tables again. Called under no lock.
  using Waiter = std::function<void()>;

  // `buffers` and `helpers` must outlive the table. `helpers` take part in large updates.
  // `assigns_positions`: this server assigns the pushes of GBA tables to updates (server 0 of a job does).
  // `measured_tables` is that of the server's RowStalenessMeters.
  ServerTable(v1::TableConfig config, std::shared_ptr<TableStorage> storage, BufferPool* buffers,
              Helpers* helpers, bool assigns_positions,
              std::shared_ptr<std::atomic<int64_t>> measured_tables);

  const std::string& name() const { return created_config_.name(); }
  uint32_t dim() const { return created_config_.dim(); }
  uint64_t elements() const { return created_config_.elements(); }
  bool dense() const { return created_config_.kind() == v1::TableConfig::DENSE; }
  uint32_t num_workers() const { return created_config_.num_workers(); }
  // Returns the index, below num_workers(), of a rank among the table's workers; nullopt if it is none of
  // them. The table's functions and TablePush::worker take this index.
  std::optional<uint32_t> WorkerIndex(uint32_t rank) const;
  // Returns OK if a process of this rank may pull for training and push. InvalidArgument otherwise: it is
  // none of the table's workers, and the table is not ASYNC. The message begins with `who`.
  absl::Status CheckRank(uint32_t rank, absl::string_view who) const;
  TableCounters& counters() { return counters_; }
  // Measures the row staleness of pushes, in all modes but SYNC.
  RowStalenessMeter& row_staleness() { return row_staleness_; }
  // Chooses how rows are written into memory that clients read in place. Each table has its own, since the
  // time of a gather depends on the table's rows, too.
  CopyChoice& gathers() { return gathers_; }
  // Returns the configuration given to CreateTable. `config` has the update mode in force instead.
  const v1::TableConfig& created_config() const { return created_config_; }
  v1::TableConfig config() const;
  // Returns configuration and statistics, including the `hottest` most frequently pulled ids.
  v1::TableInfo Info(size_t hottest = 0) const;
  std::shared_ptr<TableStorage> storage() const;
  // Returns the number of updates that are in the rows.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }
  // Returns how often rows were written other than by updates, for subscribers.
  uint64_t writes() const { return writes_.load(std::memory_order_acquire); }
  // The scope in which TableStorage::WriteRows is called. Such rows get the version of the next update, so
  // that View::version must not pass it before they are there.
  class WriteScope {
   public:
    explicit WriteScope(ServerTable* table);
    WriteScope(const WriteScope&) = delete;
    WriteScope& operator=(const WriteScope&) = delete;
    ~WriteScope();

   private:
    ServerTable& table_;
    std::multiset<uint64_t>::iterator begun_;
  };

  // Pulls.

  // The rows that a pull reads, and how new they are at least.
  struct View {
    std::shared_ptr<TableStorage> storage;
    // Every update numbered <= version is in the rows. Updates finish out of order, so `applied`, the number
    // of finished updates, can be larger. Staleness is measured from `applied`.
    uint64_t version = 0;
    uint64_t applied = 0;
    uint64_t generation = 0;  // v1::PullSliceResult.generation
    bool sync = false;        // whether the mode in force is SYNC
  };
  View Look() const;

  // Returns whether a pull of `step` need not wait: it may run now, or never will (CheckPull).
  bool Ready(uint64_t step) const;
  // Returns whether a pull of `step` need not wait. If it must, stores `waiter` under `ticket` and runs it
  // once the pull need not wait any more.
  bool ReadyOrWait(uint64_t step, uint64_t ticket, Waiter waiter);
  // Removes the waiter of that ticket, if it is still stored.
  void Forget(uint64_t ticket);
  // Returns "table 'user': pull of step 12 by worker 0 waits for the push of step 11 from worker 1 (sync)".
  std::string WhyWaiting(uint64_t step, uint32_t worker) const;

  // Pushes: check, assign, enqueue, then drain. The caller lets no other push between the check and Enqueue.

  // Return OK if a push of `step` by `worker`, or one of deferred gradients, can be accepted
  // (UpdateOrder::CheckPush, UpdateOrder::CheckDeferredGradients).
  absl::Status CheckPush(uint32_t worker, uint64_t step) const;
  absl::Status CheckDeferredGradients(uint32_t worker) const;
  // Returns whether a push of `step` would wait for a worker that has not pushed yet.
  bool IsAhead(uint64_t step) const;
  // Assigns a checked push to an update if the table is GBA and this server assigns positions. Returns the
  // position, which for other servers is the one that came with the push.
  UpdatePosition Assign(TablePush* push);
  // Returns the position of the worker's last push of `step`, if it is not long ago; otherwise a default one.
  UpdatePosition PositionOf(uint32_t worker, uint64_t step) const;
  // Queues a checked push. The caller must call Drain afterwards.
  void Enqueue(TablePush push);
  // Applies the pushes that can be applied; several threads share the work. Settles the pushes that are
  // applied or that wait for other workers. Returns the pulls that may run now.
  std::vector<Waiter> Drain();

  // Notes that the server no longer has the table: pulls need not wait for it. Adds those that do to
  // `released`. Code that then runs a pull asks CheckPull. Rows and queued pushes stay until the last
  // user of the object is gone.
  void Drop(std::vector<Waiter>* released);
  // Notes which workers have left the job, instead of those of the call before: pulls need not wait for their
  // pushes. Adds those that do to `released`. Code that then runs a pull asks CheckPull.
  void SetWorkersThatLeft(const std::set<uint32_t>& workers, std::vector<Waiter>* released);
  // Returns why a pull of `step` by `worker` must not run, though it need not wait: NotFound after Drop;
  // FailedPrecondition, which names a worker that has left, if the pull lacks that worker's push. Both name
  // the table.
  absl::Status CheckPull(uint64_t step, uint32_t worker) const;

  // Returns the memory of pushes that are queued.
  uint64_t waiting_bytes() const { return waiting_bytes_.load(std::memory_order_relaxed); }

  // The following require that no push is under way (RequestHandler::BetweenPushes).

  // Applies the gradients that a GBA table has accumulated, even if its global batch is incomplete. No effect
  // on other tables.
  void Flush();
  // Sets the clocks of the workers of a new table.
  void SetFirstStep(uint64_t step);
  // Changes the mode, then applies the pushes that need not wait in the new one. Leaving SYNC, waiting pushes
  // are applied step by step in rank order, each as an update of its own. Leaving GBA, or changing its
  // parameters, starts with Flush. Adds the pulls that may run now to `released`.
  void SetUpdateMode(const v1::UpdateMode& mode, std::vector<Waiter>* released);
  // Fills in configuration, version and clocks. FailedPrecondition while pushes wait (call Flush before):
  // they are acknowledged, but not in the rows.
  absl::Status Describe(v1::TableFileHeader* header) const;
  // Replaces rows, version and clocks, and drops waiting pushes. Adds the pulls that may run now to
  // `released`.
  void Install(std::shared_ptr<TableStorage> storage, uint64_t version, const std::vector<uint64_t>& clocks,
               std::vector<Waiter>* released);

  // Snapshots of durable servers, which also hold the queued pushes.

  // Fills in everything but the rows.
  void SaveSnapshot(v1::SnapshotTable* to) const;
  // Returns the log positions of the queued pushes, which are not in the rows.
  std::vector<uint64_t> QueuedLogPositions() const;
  // Restores what SaveSnapshot has saved into a table without storage, which gets `storage`. From now on the
  // pushes that its rows contain, as `filter` says, advance clocks and version only.
  void RestoreSnapshot(const v1::SnapshotTable& from, std::shared_ptr<TableStorage> storage,
                       std::shared_ptr<const ReplayFilter> filter);
  // Returns which pushes the rows contain already; nullptr if the table was not restored from a snapshot.
  const ReplayFilter* replay_filter() const { return filter_.get(); }
  // Returns the generation, and makes it larger than `before`.
  uint64_t generation() const;
  void RaiseGeneration(uint64_t before);

 private:
  struct WaitingPull {
    uint64_t step;
    uint64_t ticket;
    Waiter waiter;
  };

  // Makes updates until none can be made now; releases the lock while it computes.
  void ApplyReadyLocked(std::vector<Waiter>* released) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes one update of a global batch that was begun; releases the lock while it computes.
  void ApplyBatchLocked(std::vector<TablePush> batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ReadyLocked(uint64_t step) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void CollectReadyLocked(std::vector<Waiter>* released) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts an applied push; `before` is the version without its update.
  void CountApplied(const TablePush& push, uint64_t missing, uint64_t before);
  // Applies the pushes as one update. `sync`: whether the mode in force is SYNC.
  absl::StatusOr<uint64_t> Apply(TableStorage& storage, absl::Span<const TablePush* const> pushes,
                                 bool sync) const;

  const v1::TableConfig created_config_;
  BufferPool* const buffers_;
  Helpers* const helpers_;
  const bool assigns_positions_;
  TableCounters counters_;
  RowStalenessMeter row_staleness_;
  CopyChoice gathers_{CopyChoice::kOfGathers};
  std::atomic<uint64_t> version_{0};
  std::atomic<uint64_t> writes_{0};
  std::atomic<uint64_t> waiting_bytes_{0};
  std::atomic<bool> dropped_{false};  // set under mutex_
  // True once a worker has left: CheckPull then looks at left_. Set under mutex_.
  std::atomic<bool> some_left_{false};
  std::shared_ptr<const ReplayFilter> filter_;  // set before the server serves

  mutable absl::Mutex mutex_;
  UpdateOrder order_ ABSL_GUARDED_BY(mutex_);
  std::set<uint32_t> left_ ABSL_GUARDED_BY(mutex_);  // workers, by rank in the job
  std::shared_ptr<TableStorage> storage_ ABSL_GUARDED_BY(mutex_);
  // The storage's clock at the begin of each update that is being applied, and of each WriteScope.
  std::multiset<uint64_t> under_way_ ABSL_GUARDED_BY(mutex_);
  uint64_t generation_ ABSL_GUARDED_BY(mutex_);
  std::vector<WaitingPull> waiting_pulls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_SERVER_TABLE_H_
