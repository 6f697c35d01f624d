// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_SCRATCH_H_
#define TANDEM_PS_STORAGE_SCRATCH_H_

// Scratch is the working memory of one call on a table. ScratchPool keeps it from call to call, so that a
// steady state allocates nothing.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "ps/optimizers/optimizer.h"
#include "ps/storage/grouping.h"
#include "ps/storage/spill/cold_tier.h"

namespace tandem::ps {

// Not thread-safe.
struct Scratch {
  // A gradient of a row that occurs more than once in an update.
  struct Duplicate {
    uint32_t update;    // the entry of `updates` to which the gradient is added
    uint32_t position;  // of the gradient in the call
  };

  // The arguments of Eviction::Counted for a row's update.
  struct Use {
    uint32_t age;          // updates of the table since the last update of the row
    uint32_t occurrences;  // of the row's id
  };

  Grouping grouping;
  std::vector<uint64_t> ids;

  // RowUpdater
  std::vector<RowUpdate> updates;    // RowUpdate::weights points to the row
  std::vector<uint64_t> update_ids;  // the ids of `updates`, for stochastic rounding
  std::vector<Use> uses;             // of the rows of `updates`, in tables whose rows have counts
  std::vector<Duplicate> duplicates;
  absl::flat_hash_map<const char*, uint32_t> seen;  // row -> entry of `updates`, once there is a duplicate
  std::vector<uint32_t> merged_index;               // for each update: its sum in merged_sums, or kNotMerged
  std::vector<float> merged_sums;
  std::vector<float> weights;  // of rows that are not stored as floats

  // Tables that spill: items whose rows are not in memory.
  std::vector<Grouping::Item> absent;
  // Buckets that hold too many rows (RowUpdater, RowSpiller), or whose index is about to grow (RowCreator).
  std::vector<uint32_t> over;

  // RowSpiller: for each item its key in cold_keys, or kNotAsked; for each key whether the tier has a row of
  // it, and that row.
  std::vector<uint32_t> cold_at;
  std::vector<ColdTier::Key> cold_keys;
  std::vector<uint8_t> cold_found;
  std::vector<char> cold_rows;

  // Returns the memory that the object holds.
  size_t bytes() const;
};

// Scratch objects that are not in use, at most as many as calls ever ran at once. Thread-safe.
class ScratchPool {
 public:
  std::unique_ptr<Scratch> Take();
  void Release(std::unique_ptr<Scratch> scratch);
  size_t bytes() const;

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_SCRATCH_H_
