#ifndef TANDEM_PS_SERVER_TABLE_SERVER_TABLE_H_
#define TANDEM_PS_SERVER_TABLE_SERVER_TABLE_H_

// One table on one server, while it runs: its rows, how far each worker has come, and what waits for whom.
//
// Clocks. clock[w] is the number of worker w's steps that are in the rows. A worker's steps are counted from
// where the table stands: 0 in a new job, the saved clocks after LoadCheckpoint (so a resumed job goes on
// with the checkpoint's step). A push of step t by w is applied when
//   SYNC      every worker's push of step t is here: the gradients are concatenated in rank order and applied
//   as one
//             update. Should clocks differ (the table was BOUNDED or ASYNC before), workers that are behind
//             are applied on arrival until they have caught up with the foremost; then merging begins.
//   BOUNDED   all of w's pushes of steps < t are in.
//   ASYNC     it arrives. clock[w] = the highest step + 1; steps may repeat and come in any order.
//   GBA       global_batch pushes are here, whoever sent them: they are applied as one update
//   (ps/server/table/global_batch.h).
//             Clocks and steps as in ASYNC, once a push is applied.
// Pushes that cannot be applied yet are kept, and acknowledged, until they can. A pull of step t may run when
//   SYNC      every clock >= t;   BOUNDED(k)  every clock >= t - k;   ASYNC, GBA  always.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/buffer_pool.h"
#include "base/copy_choice.h"
#include "ps/server/table/global_batch.h"
#include "ps/server/table/statistics.h"
#include "ps/server/table/table_push.h"
#include "ps/storage/table_storage.h"
#include "tandem/v1/checkpoint.pb.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

// Thread-safe. Shared by the requests that use it.
class ServerTable {
 public:
  // How many of one worker's steps may be here ahead of the one that is applied next.
  static constexpr uint64_t kMaxEarlyPushes = 256;

  // A pull that waits; runs under no lock, once the table lets its step read. It looks again at all its
  // tables.
  using Waiter = std::function<void()>;

  // `places`: this server gives the pushes of a GBA table their places (a job's server 0). `helpers` take
  // part in its updates.
  ServerTable(v1::TableConfig config, std::shared_ptr<TableStorage> storage, BufferPool* buffers,
              Helpers* helpers, bool places);

  const std::string& name() const { return created_config_.name(); }
  uint32_t dim() const { return created_config_.dim(); }
  uint64_t elements() const { return created_config_.elements(); }
  bool dense() const { return created_config_.kind() == v1::TableConfig::DENSE; }
  uint32_t num_workers() const { return created_config_.num_workers(); }
  TableCounters& counters() { return counters_; }
  // How its rows are written into memory that it shares with who pulls them. Of each table, since how long a
  // gather takes depends on its rows, too.
  CopyChoice& gathers() { return gathers_; }
  // As CreateTable was given it; `config` has the update mode in force.
  const v1::TableConfig& created_config() const { return created_config_; }
  v1::TableConfig config() const;
  // With the `hottest` most pulled ids.
  v1::TableInfo Info(size_t hottest = 0) const;
  std::shared_ptr<TableStorage> storage() const;
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

  // What a pull reads from, and what its rows are at least as new as.
  struct View {
    std::shared_ptr<TableStorage> storage;
    // All updates up to this one are in the rows. Updates run in parallel: version() counts those that are
    // done, and among as many first ones there may be one that is not.
    uint64_t version = 0;
    uint64_t applied = 0;     // so many are in the rows: what is counted of a push since then, they may lack
    uint64_t generation = 0;  // v1::PullSliceResult.generation
    bool sync = false;        // the mode in force
  };
  View Look() const;

  // Whether a pull of `step` may run now.
  bool Ready(uint64_t step) const;
  // The same; when not, `waiter` is kept under `ticket` and run as soon as it may.
  bool ReadyOrWait(uint64_t step, uint64_t ticket, Waiter waiter);
  // Forgets the waiter of that ticket, if it is still there.
  void Forget(uint64_t ticket);
  // "table 'user': pull of step 12 by worker 0 waits for the push of step 11 from worker 1 (sync)".
  std::string WhyWaiting(uint64_t step, uint32_t worker) const;

  // OK when a push of `step` by `worker` can be taken. InvalidArgument names what came and what was expected.
  absl::Status CheckPush(uint32_t worker, uint64_t step) const;
  // The same for gradients held back from earlier steps. FailedPrecondition when the mode has no place for
  // them.
  absl::Status CheckHeldBack(uint32_t worker) const;
  // Whether a push of `step` would wait for some worker that is not there yet.
  bool IsAhead(uint64_t step) const;
  // Gives a push that CheckPush let pass its place, when the table is GBA and this is the server that says
  // so, and notes it for PlaceOf; returns the place.
  PushPlace Assign(TablePush* push);
  // The place of a push that came before: of the last one that `worker` sent for `step`, if not too long ago.
  PushPlace PlaceOf(uint32_t worker, uint64_t step) const;
  // Takes a push that CheckPush let pass. The caller lets no other push between the two (and Assign), and
  // calls Drain after it.
  void Enqueue(TablePush push);
  // Applies what can be applied; several threads share the work. Returns the pulls that may run now.
  std::vector<Waiter> Drain();

  // Bytes of pushes that are kept to wait for others.
  uint64_t waiting_bytes() const { return waiting_bytes_.load(std::memory_order_relaxed); }

  // The following need that no push is under way (ParameterServer's gate).
  //
  // Applies what GBA keeps: the update that is being filled is made of what is there.
  void ApplyDeferred();
  // Switches the mode, then applies what the new one need not keep. Leaving SYNC, kept pushes are applied
  // step by step in rank order, each as an update of its own; leaving GBA, or changing its figures, as
  // ApplyKept does.
  void SetUpdateMode(const v1::UpdateMode& mode, std::vector<Waiter>* released);
  // Fills in version and clocks. FailedPrecondition while pushes are kept (in GBA: call ApplyKept first):
  // they are acknowledged but not in the rows.
  absl::Status Describe(v1::TableFileHeader* header) const;
  // Replaces rows, version and clocks; drops kept pushes.
  void Install(std::shared_ptr<TableStorage> storage, uint64_t version, const std::vector<uint64_t>& clocks,
               std::vector<Waiter>* released);

 private:
  struct Worker {
    uint64_t clock = 0;
    bool busy = false;                           // its first push is being applied
    std::multimap<uint64_t, TablePush> waiting;  // by step
    std::set<uint64_t>
        skipped;  // steps < clock that an ASYNC table has not seen: they may still be on their way
    std::map<uint64_t, PushPlace> places;  // GBA: of its last steps
  };
  struct Parked {
    uint64_t step;
    uint64_t ticket;
    Waiter waiter;
  };

  bool ReadyLocked(uint64_t step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t MinClockLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The workers whose first pushes make the next update, in rank order; empty when none can be made now.
  std::vector<uint32_t> PickLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes updates until PickLocked finds none; releases the lock while it computes.
  void ApplyReadyLocked(std::vector<Waiter>* released) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same in GBA.
  void ApplyBatchesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes one update of a global batch; releases the lock while it computes.
  void ApplyBatchLocked(std::vector<TablePush> batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t GlobalBatchSizeLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Advance(Worker& worker, uint64_t step);
  void CollectReadyLocked(std::vector<Waiter>* released) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `settled` of pushes that are left waiting for others, not for a thread.
  void CollectBlockedLocked(std::vector<TablePush::Settled>* settled) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Applies pushes as one update. Returns how many entries had no row, or why the table is damaged.
  absl::StatusOr<uint64_t> ApplyMerged(TableStorage& storage,
                                       absl::Span<const TablePush* const> pushes) const;

  const v1::TableConfig created_config_;
  BufferPool* const buffers_;
  Helpers* const helpers_;
  const bool places_;
  TableCounters counters_;
  CopyChoice gathers_{CopyChoice::kOfGathers};
  std::atomic<uint64_t> version_{0};
  std::atomic<uint64_t> waiting_bytes_{0};

  mutable absl::Mutex mutex_;
  v1::UpdateMode mode_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<TableStorage> storage_ ABSL_GUARDED_BY(mutex_);
  std::vector<Worker> workers_ ABSL_GUARDED_BY(mutex_);
  int busy_ ABSL_GUARDED_BY(mutex_) = 0;  // threads applying an update
  // Of each of these updates: the storage's clock when it was about to begin.
  std::multiset<uint64_t> under_way_ ABSL_GUARDED_BY(mutex_);
  uint64_t generation_ ABSL_GUARDED_BY(mutex_);
  GlobalBatch batch_ ABSL_GUARDED_BY(mutex_);
  std::vector<Parked> parked_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_SERVER_TABLE_H_
