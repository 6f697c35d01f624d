#ifndef TANDEM_PS_SERVER_TABLE_GLOBAL_BATCH_H_
#define TANDEM_PS_SERVER_TABLE_GLOBAL_BATCH_H_

// Global-batch aggregation (Su et al., "GBA: a tuning-free approach to switch between synchronous and
// asynchronous training", NeurIPS 2022): which pushes make an update. The first `size` pushes to arrive,
// whoever sent them, are update 1, the next `size` update 2, and so on; workers wait for nobody. A push that
// was pulled more than `staleness` updates before its own is left out of it (the paper's weight 0), but still
// counts as one of its `size`.
//
// All of a job's servers must group alike, though a push reaches them at different times: an update would
// otherwise hold other pushes here than there, and one that is left out here might be applied there. So
// server 0 decides, as the paper's token list does: a push goes to it first, gets its place (the update's
// number and whether it is stale) with the acknowledgement, and brings it along to the others. They have
// update u when `size` pushes of it are there, and apply updates in the order of their numbers. What keeps
// this alive whatever clients do:
//   - a push without a place (the client had not heard yet that the table is GBA), or whose update has
//   passed, rides
//     along with the next update; `size` of them with no other push there are an update of their own;
//   - an update that waits in vain for a push (its worker has died between two servers) is made without it
//   once
//     kMaxUpdates times `size` pushes are kept.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "ps/server/table/table_push.h"

namespace tandem::ps {

// The pushes that one GBA table keeps. Not thread-safe: ServerTable's lock guards it.
class GlobalBatch {
 public:
  static constexpr size_t kMaxUpdates = 4;  // more are not kept to wait for the first of them

  // Forgets everything, in a table that is at `version` from now on, here as on server 0.
  void Reset(uint64_t version);
  // The table becomes GBA at `version`; server 0 may count otherwise. Nothing is kept.
  void Start(uint64_t version);
  // What was kept has been taken, the last update perhaps before it was complete: the table is at `version`
  // now.
  void Reopen(uint64_t version);

  // The place of the push that arrives next, on server 0, which is to be added.
  UpdatePosition Assign(uint64_t pulled_version, uint64_t size, uint64_t staleness);
  // Keeps the push, at push.position if it has one.
  void Add(TablePush push);
  // The pushes of the next update, in the order of (worker, step), when it can be made now; else nothing.
  std::optional<std::vector<TablePush>> TakeNext(uint64_t size);
  // The next update as it stands, complete or not; something must be kept.
  std::vector<TablePush> TakeFirst();

  size_t pushes() const { return pushes_; }
  void ForEach(const std::function<void(TablePush&)>& visit);

 private:
  uint64_t open_ = 1;               // the number of the update that is being filled, on server 0
  uint64_t in_open_ = 0;            // its pushes so far
  std::optional<uint64_t> passed_;  // updates up to this have been made; none: the next may be any
  std::map<uint64_t, std::vector<TablePush>> placed_;  // by update
  std::vector<TablePush> unplaced_;                    // in order of arrival
  size_t pushes_ = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_GLOBAL_BATCH_H_
