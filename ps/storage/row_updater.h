// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_ROW_UPDATER_H_
#define TANDEM_PS_STORAGE_ROW_UPDATER_H_

// RowUpdater applies the optimizer to rows that are in memory.
//
// An update sorts its ids by lock and takes one lock (or several with few ids each) at a time, so that
// concurrent updates meet only where their rows do. Several threads may share the locks of one update among
// them.

#include <cstdint>

#include "absl/types/span.h"
#include "ps/optimizers/optimizer.h"
#include "ps/storage/admission_filter.h"
#include "ps/storage/buckets.h"
#include "ps/storage/grouping.h"
#include "ps/storage/row_creator.h"
#include "ps/storage/row_evictor.h"
#include "ps/storage/scratch.h"
#include "ps/storage/table_storage.h"

namespace tandem::ps {

// The arguments of one update that all its rows share. A plain value.
struct UpdateArguments {
  const float* gradients;       // [ids.size() x dim]
  const float* row_factors;     // [ids.size()], or nullptr; see ApplyOptions
  const uint32_t* occurrences;  // [ids.size()], or nullptr; see ApplyOptions
  float learning_rate_factor;   // multiplies the optimizer's learning rate; includes the warm-up
  float batch_share;            // multiplies the optimizer's regularization
  uint64_t time;                // the table's clock after this update
  uint32_t now() const { return static_cast<uint32_t>(time); }
};

// Thread-safe. The objects that the constructor is given must outlive the updater.
class RowUpdater {
 public:
  struct Options {
    uint64_t seed = 0;
    bool stochastic_rounding = false;
    bool spills = false;  // rows that are not in memory may be on disk
  };
  RowUpdater(Buckets* buckets, const Optimizer* optimizer, AdmissionFilter* admission, RowCreator* creator,
             RowEvictor* evictor, ScratchPool* scratch_pool, const Options& options);

  // Updates the rows of `ids`, and creates those that admission accepts now. Evicts rows from buckets that
  // are then over their quota. Returns the number of entries without a row, which were skipped. `helpers`,
  // unless it is nullptr, may take part in a large update.
  //
  // In tables that spill, no row is created or evicted. Instead the items without a row in memory are
  // appended to scratch->absent and the buckets over their quota to scratch->over; the caller handles both.
  uint64_t Apply(absl::Span<const uint64_t> ids, const UpdateArguments& update, Helpers* helpers,
                 Scratch* scratch);

  // Updates the rows of `items`, whose locks the caller holds exclusively. With `admit` it first creates the
  // rows that admission accepts now. Returns the number of items without a row; in tables that spill, it
  // appends them to scratch->absent.
  uint64_t UpdateLocked(absl::Span<const Grouping::Item> items, const UpdateArguments& update, bool admit,
                        Scratch* scratch);

 private:
  struct SharedUpdate;
  // Updates blocks of the update until none is left.
  void RunBlocks(SharedUpdate* shared, Scratch* scratch);
  // UpdateLocked, then evicts rows from buckets over their quota or notes these buckets.
  uint64_t UpdateBlock(absl::Span<const Grouping::Item> items, const UpdateArguments& update,
                       Scratch* scratch);
  // Copies the rows of the items for a checkpoint that is being written (RowCut).
  void KeepOldRows(absl::Span<const Grouping::Item> items);
  // Creates rows for the items without one that admission accepts now.
  void AdmitItems(absl::Span<const Grouping::Item> items, uint64_t now, Scratch* scratch);
  // Fills scratch->updates with one entry for each distinct row of the items, with the sum of its gradients.
  // Returns the number of items without a row.
  uint64_t CollectUpdates(absl::Span<const Grouping::Item> items, const UpdateArguments& update,
                          Scratch* scratch);
  // Returns true if the row has an entry in scratch->updates already, and notes the gradient as its
  // duplicate. The map of rows seen is built when a row first looks `suspicious`, and then kept up to date.
  bool IsDuplicate(const char* row, uint32_t position, bool suspicious, Scratch* scratch);
  void MergeDuplicates(const float* gradients, Scratch* scratch);
  void RunOptimizer(const UpdateArguments& arguments, Scratch* scratch);
  // Unpacks, updates and packs rows that are not stored as floats. `some` begins at scratch->updates[first].
  void UpdateUnpacked(size_t first, absl::Span<RowUpdate> some, const UpdateArguments& arguments,
                      Scratch* scratch);
  // Counts an update of each of `some`, which begins at scratch.updates[first].
  void CountRows(size_t first, absl::Span<const RowUpdate> some, const Scratch& scratch) const;

  Buckets* const buckets_;
  const Optimizer* const optimizer_;
  AdmissionFilter* const admission_;
  RowCreator* const creator_;
  RowEvictor* const evictor_;
  ScratchPool* const scratch_pool_;
  const Options options_;
  const RowLayout layout_;  // that of buckets_, copied to save the inner loops an indirection
  const size_t dim_;        // layout_.dim
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROW_UPDATER_H_
