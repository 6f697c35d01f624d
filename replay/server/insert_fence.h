// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_SERVER_INSERT_FENCE_H_
#define TANDEM_REPLAY_SERVER_INSERT_FENCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "tandem/v1/replay.pb.h"

namespace tandem::replay {

namespace v1 = ::tandem::v1;

// Identifies an insert request: its writer and the request's number among those to one table.
struct InsertId {
  std::string writer;
  uint64_t incarnation = 0;
  uint64_t sequence = 0;
  uint64_t acknowledged_items = 0;  // items that earlier answers of this incarnation have acknowledged
};

// Records which requests of each writer a table has taken, and how much of the last one, so that every item
// is inserted exactly once. A writer sends its requests to a table one after the other. Thread-safe; Begin
// and Progress are called under the table's lock, so that a snapshot of the table, together with Save, is
// consistent.
class InsertFence {
 public:
  static constexpr size_t kMaxWriters = 65536;

  // Returns how many of the request's `items` are in the table already: none if it is new, all if it is a
  // repetition. Counts the items that the writer knows to be in the table and that the table does not know:
  // they were lost with an earlier server. FailedPrecondition: the incarnation is older than the newest one
  // of this writer. InvalidArgument: sequence 0. Of more than kMaxWriters writers, those that have
  // not inserted for the longest time are forgotten: a repetition of their last request would be inserted
  // again.
  absl::StatusOr<size_t> Begin(const InsertId& id, size_t items);
  // Records that the first `inserted` of the request's `items` are in the table.
  void Progress(const InsertId& id, size_t inserted, size_t items);

  // Returns the state for a checkpoint.
  std::vector<v1::ReplayWriterFence> Save() const;
  // Replaces the state.
  void Restore(const google::protobuf::RepeatedPtrField<v1::ReplayWriterFence>& fences, uint64_t lost_items);

  uint64_t lost_items() const;
  uint64_t repeated() const;  // the number of requests that were repetitions

 private:
  struct Writer {
    uint64_t incarnation = 0;
    uint64_t sequence = 0;          // requests up to this one are taken as a whole
    uint64_t partial_sequence = 0;  // a later one, of which the first `partial` items are taken; 0: none
    uint64_t partial = 0;
    uint64_t items = 0;  // of this incarnation that were taken or lost
    uint64_t used = 0;   // the number of the last request of all writers that is of this one
  };

  mutable absl::Mutex mutex_;
  std::map<std::string, Writer> writers_ ABSL_GUARDED_BY(mutex_);
  void ForgetOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  uint64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t lost_items_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t repeated_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_SERVER_INSERT_FENCE_H_
