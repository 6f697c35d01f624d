// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_ROW_CREATOR_H_
#define TANDEM_PS_STORAGE_ROW_CREATOR_H_

// RowCreator computes the initial values of rows, and creates rows: those of a DENSE table, and those that a
// pull finds missing.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "ps/optimizers/optimizer.h"
#include "ps/policies/initializer.h"
#include "ps/storage/admission_filter.h"
#include "ps/storage/buckets.h"
#include "ps/storage/scratch.h"

namespace tandem::ps {

// Thread-safe. The objects that the constructor is given must outlive the creator.
class RowCreator {
 public:
  // `dense_rows` is the number of rows of a DENSE table, whose ids are [0, dense_rows); nullopt for others.
  RowCreator(Buckets* buckets, std::unique_ptr<Initializer> initializer, const Optimizer* optimizer,
             const AdmissionFilter* admission, ScratchPool* scratch_pool, uint64_t seed,
             std::optional<uint64_t> dense_rows);

  // Returns true for the ids that a DENSE table cannot have.
  bool OutOfRange(uint64_t id) const { return dense_rows_.has_value() && id >= *dense_rows_; }
  // Writes the row's initial values, as they read once they are stored. Requires no lock and should be called
  // without one: it may be slow.
  void InitialValues(uint64_t id, float* values) const;
  // Creates and counts a row that was admitted, with `values` from InitialValues and new optimizer state.
  // Requires the bucket's lock, exclusively, and that the id has no row.
  void AdmitRow(RowStore* store, uint64_t id, uint64_t hash, uint32_t version, const float* values);

  // Creates the rows of a DENSE table in the buckets for which `owns` returns true.
  void CreateDenseRows(absl::FunctionRef<bool(uint32_t bucket)> owns);
  // Gather for ids[missing], which were not in memory, in tables that do not spill: reads their initial
  // values and, with `create`, creates their rows if pulls do that in this table.
  void FillMissing(absl::Span<const uint64_t> ids, absl::Span<const uint32_t> missing, bool create,
                   float* out);

  // The number of rows that AdmitRow and FillMissing have created.
  uint64_t admitted_rows() const { return admitted_.load(std::memory_order_relaxed); }

 private:
  void InitRow(char* row, const float* values) const;

  Buckets* const buckets_;
  const std::unique_ptr<Initializer> initializer_;
  const Optimizer* const optimizer_;
  const AdmissionFilter* const admission_;
  ScratchPool* const scratch_pool_;
  const uint64_t seed_;
  const std::optional<uint64_t> dense_rows_;
  std::atomic<uint64_t> admitted_{0};
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROW_CREATOR_H_
