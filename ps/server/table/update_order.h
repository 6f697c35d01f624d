// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_TABLE_UPDATE_ORDER_H_
#define TANDEM_PS_SERVER_TABLE_UPDATE_ORDER_H_

// The rules of the update modes, and the pushes that wait because of them.
//
// A push of step t by worker w is applied, depending on the mode:
//
//   SYNC     when every worker's push of step t has arrived. The gradients are concatenated in rank order and
//            applied as one update. If the clocks differ (the table was BOUNDED or ASYNC before), the pushes
//            of workers that are behind are applied on arrival until all clocks are equal.
//   BOUNDED  when all pushes of w of steps < t are in the rows.
//   ASYNC    on arrival. Steps may repeat and arrive in any order; the clock of w is its highest step + 1.
//   GBA      when the pushes of a global batch have arrived, from any workers. They are applied as one update
//            (ps/server/table/global_batch.h). Clocks are as in ASYNC, once a push is applied.
//
// A push that cannot be applied yet waits, and is acknowledged. A pull of step t may run, depending on the
// mode:
//
//   SYNC        when every worker's clock >= t
//   BOUNDED(k)  when every worker's clock >= t - k
//   ASYNC, GBA  always

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps/server/table/global_batch.h"
#include "ps/server/table/table_push.h"
#include "ps/server/table/worker_clocks.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::v1 {
class UpdateOrderState;
}

namespace tandem::ps {

namespace v1 = ::tandem::v1;

class ReplayFilter;

// Not thread-safe: ServerTable's mutex guards it.
class UpdateOrder {
 public:
  // Number of steps by which a worker's pushes may be ahead of its clock.
  static constexpr uint64_t kMaxEarlyPushes = 256;

  // `table` names the table in messages; it must outlive this object.
  UpdateOrder(const std::string* table, const v1::UpdateMode& mode, uint32_t num_workers,
              uint32_t first_worker = 0);

  const v1::UpdateMode& mode() const { return mode_; }
  bool sync() const { return mode_.kind() == v1::UpdateMode::SYNC; }
  bool gba() const { return mode_.kind() == v1::UpdateMode::GBA; }
  const WorkerClocks& clocks() const { return clocks_; }
  size_t waiting_pushes() const;  // queued, in any mode

  // Pulls.

  // Returns whether a pull of `step` may run now.
  bool PullMayRun(uint64_t step) const;
  // Returns "table 'user': pull of step 12 by worker 0 waits for the push of step 11 from worker 1 (sync)".
  std::string WhyWaiting(uint64_t step, uint32_t worker) const;
  // Returns the first of `workers`, by rank in the job, for whose push a pull of `step` waits.
  std::optional<uint32_t> FirstAwaited(uint64_t step, const std::set<uint32_t>& workers) const;

  // Accepting pushes.

  // Returns OK if a push of `step` by `worker` can be accepted. InvalidArgument: it is a repetition, or too
  // far ahead; the message says what came and what was expected.
  absl::Status CheckPush(uint32_t worker, uint64_t step) const;
  // Returns OK if gradients deferred from earlier steps can be accepted. FailedPrecondition: the mode does
  // not allow them.
  absl::Status CheckDeferredGradients(uint32_t worker) const;
  // Returns whether a push of `step` would wait for other workers' pushes. Memory limits apply to such
  // pushes.
  bool IsAhead(uint64_t step) const;
  // Server 0: assigns the push to an update if the table is GBA, and remembers that for PositionOf.
  UpdatePosition Assign(const TablePush& push);
  // Returns the position of the worker's last push of `step`, if it is not long ago; otherwise a default one.
  UpdatePosition PositionOf(uint32_t worker, uint64_t step) const;
  // Queues a push that passed CheckPush.
  void Add(TablePush push);

  // Applying pushes. The caller applies the pushes of an update that is begun, without the lock, and then
  // finishes the update.

  // One update in a mode other than GBA. Its pushes stay queued until Finish, so that CheckPush sees them.
  struct Update {
    std::vector<uint32_t> workers;                                      // in rank order
    std::vector<std::multimap<uint64_t, TablePush>::iterator> entries;  // [workers]
    std::vector<const TablePush*> pushes;                               // [workers]
  };
  // Begins the next update. Empty: none can be made now.
  std::optional<Update> Begin();
  // Advances the clocks and returns the update's pushes, which are not queued any more.
  std::vector<TablePush> Finish(const Update& update);

  // Begins the next update of a GBA table. Empty: none can be made now. One GBA update is made at a time.
  std::optional<std::vector<TablePush>> BeginBatch();
  // Begins the next update of what has arrived, complete or not. Empty: nothing is queued for GBA updates.
  std::optional<std::vector<TablePush>> BeginPartialBatch();
  // Advances the clocks for the pushes of a batch that was begun, stale ones included.
  void FinishBatch(const std::vector<TablePush>& batch);
  // After BeginPartialBatch has returned all: the next update is number `version` + 1.
  void ReopenBatch(uint64_t version) { batch_.Reopen(version); }

  // Moves `settled` out of the pushes that wait for other workers, not merely for a thread.
  void CollectBlocked(std::vector<TablePush::Settled>* settled);

  // Changes of mode, and checkpoints. No update may be under way.

  // Changes the mode. No push may be queued for GBA updates.
  void SetMode(const v1::UpdateMode& mode) { mode_ = mode; }
  // Takes the queued push of the lowest step and, among those, the lowest rank that the mode applies without
  // waiting for other workers. Empty: there is none, or the mode is SYNC. AdvanceClock must follow.
  std::optional<TablePush> TakeLowestStep();
  // Advances its worker's clock for a push that is in the rows, unless its gradients were deferred.
  void AdvanceClock(const TablePush& push);
  // Call after a change of mode: the first GBA update, if the mode is GBA, is the one after `version`.
  void StartBatch(uint64_t version) { batch_.Start(version); }
  // Returns the clocks, for a checkpoint. FailedPrecondition while pushes wait: they are acknowledged, but
  // not in the rows.
  absl::StatusOr<std::vector<uint64_t>> Save() const;
  // Sets the clocks and drops all queued pushes, whose memory_bytes are returned.
  uint64_t Restore(uint64_t version, const std::vector<uint64_t>& clocks);

  // Snapshots (ps/server/table/update_order_state.cc). No update may be under way.

  // Returns the clocks and the queued pushes, of these only what the rows do not contain. `dim` is that of
  // the gradients; `filter` may be nullptr: the rows contain nothing.
  v1::UpdateOrderState SaveState(uint32_t dim, const ReplayFilter* filter) const;
  // Returns DataLoss unless `state` is one that RestoreState may be given in a table of `num_workers` workers
  // and rows of `dim` values: its queued pushes are whole and of workers that exist.
  static absl::Status CheckState(const v1::UpdateOrderState& state, uint32_t dim, uint32_t num_workers);
  // Replaces the state, but not the mode. Returns the memory of the queued pushes, in bytes. Requires that
  // CheckState has accepted the state.
  uint64_t RestoreState(const v1::UpdateOrderState& state);
  // Returns the log positions of the queued pushes.
  std::vector<uint64_t> QueuedPositions() const;

 private:
  // Returns how many steps each worker must have pushed before a pull of `step` runs.
  uint64_t StepsNeeded(uint64_t step) const;

  struct Worker {
    bool busy = false;  // its first push is being applied
    // By step; deferred gradients, which are applied on arrival, come first, with 0.
    std::multimap<uint64_t, TablePush> waiting;
    std::map<uint64_t, UpdatePosition> positions;  // GBA: of its last steps
  };

  // Returns the workers whose first pushes make the next update, in rank order; none if it cannot be made
  // now.
  std::vector<uint32_t> Pick() const;
  // Returns whether the worker's push of `step` is queued. Deferred gradients are not a push of their step.
  bool IsQueued(uint32_t worker, uint64_t step) const;
  // Returns the worker's first step that is neither in the rows nor queued.
  uint64_t NextStep(uint32_t worker) const;
  uint64_t GlobalBatchSize() const;

  const std::string& table_;
  const uint32_t first_worker_;  // the rank of worker 0, for messages
  v1::UpdateMode mode_;
  WorkerClocks clocks_;
  std::vector<Worker> workers_;
  GlobalBatch batch_;
  int updates_under_way_ = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_UPDATE_ORDER_H_
