// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_BUCKETED_STORAGE_H_
#define TANDEM_PS_STORAGE_BUCKETED_STORAGE_H_

// BucketedStorage implements TableStorage. It owns the parts of a table and connects them; each part has its
// own header:
//
//   Buckets           the rows in memory, their indexes and locks
//   AdmissionFilter   which ids get a row
//   RowCreator        initial values and new rows
//   RowGatherer       reads
//   RowEvictor        which rows leave memory
//   RowUpdater        updates
//   RowSpiller        rows on disk, in tables with `spill` only

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ps/optimizers/optimizer.h"
#include "ps/policies/admission.h"
#include "ps/policies/eviction.h"
#include "ps/policies/initializer.h"
#include "ps/storage/admission_filter.h"
#include "ps/storage/buckets.h"
#include "ps/storage/gather_rows.h"
#include "ps/storage/row_creator.h"
#include "ps/storage/row_evictor.h"
#include "ps/storage/row_gatherer.h"
#include "ps/storage/row_spiller.h"
#include "ps/storage/row_updater.h"
#include "ps/storage/scratch.h"
#include "ps/storage/spill/cold_tier.h"
#include "ps/storage/table_storage.h"

namespace tandem::ps {

// Thread-safe.
class BucketedStorage : public TableStorage {
 public:
  struct Policies {
    std::unique_ptr<Optimizer> optimizer;
    std::unique_ptr<Initializer> initializer;
    std::unique_ptr<Admission> admission;
    std::unique_ptr<Eviction> eviction;  // may be nullptr
    std::unique_ptr<ColdTier> tier;      // nullptr: evicted rows are erased
    bool pulls_create = true;            // false: pulls create no rows, whatever admission says
  };
  BucketedStorage(const v1::TableConfig& config, uint32_t num_buckets, Policies policies);

  // Creates the rows of a DENSE table; no effect on others.
  void CreateDenseRows(absl::FunctionRef<bool(uint32_t)> owns) { creator_.CreateDenseRows(owns); }

  absl::Status Gather(absl::Span<const uint64_t> ids, bool create, float* out) override {
    return GatherAs(RowFormat::Out::kFloats, ids, create, out);
  }
  absl::Status GatherAround(absl::Span<const uint64_t> ids, bool create, float* out) override {
    return GatherAs(RowFormat::Out::kFloatsAround, ids, create, out);
  }
  DType row_type() const override { return buckets_.layout().dtype; }
  absl::Status GatherStored(absl::Span<const uint64_t> ids, bool create, char* out) override;
  absl::StatusOr<size_t> GatherNewer(absl::Span<const uint64_t> ids, const uint32_t* cached, uint64_t max_age,
                                     bool create, float* out, uint8_t* sent) override;
  absl::StatusOr<uint64_t> Apply(absl::Span<const uint64_t> ids, const float* gradients,
                                 const ApplyOptions& options) override;
  absl::Status ReadRows(absl::Span<const uint64_t> ids, float* out, uint8_t* exists) override;
  absl::Status WriteRows(absl::Span<const uint64_t> ids, const float* rows) override;
  uint64_t rows() const override {
    return buckets_.num_rows() + (spiller_ == nullptr ? 0 : spiller_->cold_rows());
  }
  StorageStatistics Statistics() const override;
  uint32_t row_floats() const override { return static_cast<uint32_t>(buckets_.layout().row_floats()); }
  absl::Status VisitBucket(uint32_t bucket, RowVisitor visit) override;
  absl::StatusOr<bool> VisitRows(uint32_t bucket, uint64_t first_id, size_t limit, RowVisitor visit) override;
  void MarkCut() override;
  absl::StatusOr<BucketChanges> VisitChanges(uint32_t bucket, RowVisitor visit) override;
  void BeginCut() override;
  absl::StatusOr<BucketChanges> VisitCut(uint32_t bucket, bool whole, RowVisitor visit) override;
  void EndCut(bool keep) override;
  void BeginRemovalLog() override;
  absl::StatusOr<NewerRows> VisitNewer(uint32_t bucket, uint64_t since, bool whole, uint64_t first_id,
                                       size_t limit, RowVisitor visit) override;
  uint64_t cut_bytes() const override { return buckets_.cut().bytes(); }
  absl::Status Restore(uint64_t id, const float* row, const RowHistory& history) override;
  std::string SaveFilter(uint32_t bucket) const override;
  bool RestoreFilter(uint32_t bucket, absl::string_view counters) override;
  uint64_t clock() const override { return buckets_.clock(); }
  void SetClock(uint64_t clock) override { buckets_.SetClock(clock); }
  void Clear() override;

 private:
  absl::Status CheckWhole() const override {
    return spiller_ == nullptr ? absl::OkStatus() : spiller_->CheckWhole();
  }
  absl::Status GatherAs(RowFormat::Out as, absl::Span<const uint64_t> ids, bool create, float* out);
  // Gather for ids[missing], which were not in memory.
  absl::Status FillMissing(absl::Span<const uint64_t> ids, absl::Span<const uint32_t> missing, bool create,
                           float* out);

  // A part may point to those above it.
  const std::unique_ptr<Optimizer> optimizer_;
  ScratchPool scratch_pool_;
  Buckets buckets_;
  AdmissionFilter admission_;
  RowCreator creator_;
  RowGatherer gatherer_;
  RowEvictor evictor_;
  RowUpdater updater_;
  std::unique_ptr<RowSpiller> spiller_;  // nullptr: rows are in memory only
  std::atomic<uint64_t> refused_{0};
  std::atomic<bool> records_removals_{false};
  // The clock at the last cut, and whether there was one; the same of the cut that is being visited. Used by
  // one thread at a time, which takes checkpoints.
  uint64_t cut_ = 0;
  bool has_cut_ = false;
  uint64_t new_cut_ = 0;
  bool has_new_cut_ = false;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_BUCKETED_STORAGE_H_
