// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_TABLE_GLOBAL_BATCH_H_
#define TANDEM_PS_SERVER_TABLE_GLOBAL_BATCH_H_

// Global-batch aggregation (Su et al., "GBA: a tuning-free approach to switch between synchronous and
// asynchronous training", NeurIPS 2022). Decides which pushes form an update: the first `size` pushes to
// arrive, from any workers, form update 1, the next `size` update 2, and so on. Workers do not wait for each
// other. A push whose pull is more than `staleness` updates older than its own update is left out of it (the
// paper's weight 0), but still counts as one of its `size` pushes.
//
// All servers of a job must form the same updates, although a push reaches them at different times. So server
// 0 decides, like the paper's token list. A push goes to server 0 first, which assigns it to an update and
// returns this position (the update's number and whether the push is stale) with the acknowledgement. The
// client sends the position along to the other servers. They make update u when `size` pushes assigned to u
// have arrived, and apply updates in the order of their numbers.
//
// Two rules keep the updates going whatever clients do:
//
//   - A push without a position (its client did not know yet that the table is GBA), or with the position of
//     an update that was made already, joins the next update. `size` of them, with no other push queued, form
//     an update of their own.
//   - An update for which a push never arrives (its worker died between two servers) is made without it once
//     kMaxUpdates * `size` pushes are queued.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "ps/server/table/table_push.h"

namespace tandem::v1 {
class UpdateOrderState;
}

namespace tandem::ps {

namespace v1 = ::tandem::v1;

class ReplayFilter;

// The queued pushes of one GBA table. Not thread-safe: ServerTable's mutex guards it.
class GlobalBatch {
 public:
  // Number of updates whose pushes may be queued while the first of them is incomplete.
  static constexpr size_t kMaxUpdates = 4;

  // Drops all pushes. Call when the table is set to `version`, here and on server 0: the next update is
  // number `version` + 1.
  void Reset(uint64_t version);
  // Call when the table becomes GBA at `version`. The version of server 0 may differ, so the positions of the
  // pushes tell the number of the next update (UpdatePosition::first). No push may be queued.
  void Start(uint64_t version);
  // Call when all pushes have been taken, the last update perhaps before it was complete, and the table is at
  // `version`: Assign begins with update `version` + 1.
  void Reopen(uint64_t version);

  // Server 0: returns the position of the push that arrives next. Add must follow.
  UpdatePosition Assign(uint64_t pulled_version, uint64_t size, uint64_t staleness);
  // Queues the push, for the update of push.position if it has one.
  void Add(TablePush push);
  // Takes the pushes of the next update, in order of (worker, step). Returns nullopt if it cannot be made
  // yet.
  std::optional<std::vector<TablePush>> TakeNext(uint64_t size);
  // Takes the pushes of the next update, complete or not. Requires a queued push.
  std::vector<TablePush> TakeFirst();

  size_t pushes() const { return pushes_; }  // queued
  void ForEach(const std::function<void(TablePush&)>& visit);

  // Save and restore everything, for snapshots (ps/server/table/update_order_state.cc).
  void SaveState(uint32_t dim, const ReplayFilter* filter, v1::UpdateOrderState* state) const;
  void RestoreState(const v1::UpdateOrderState& state);
  // Appends the log positions of the queued pushes.
  void AddLogPositions(std::vector<uint64_t>* positions) const;

 private:
  // Learns from a position that update `first` is the first one. Updates before it will not come.
  void BeginWith(uint64_t first);

  uint64_t first_ = 1;    // server 0: number of the first update
  uint64_t open_ = 1;     // server 0: number of the update to which pushes are being assigned
  uint64_t in_open_ = 0;  // number of its pushes so far
  // The last update that was made, or the one before the first. Empty: it is not known which comes next.
  std::optional<uint64_t> passed_;
  std::map<uint64_t, std::vector<TablePush>> placed_;  // by update
  std::vector<TablePush> unplaced_;                    // in order of arrival
  size_t pushes_ = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_GLOBAL_BATCH_H_
