// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/row_model.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ps/table.h"

namespace tandem::bench {

v1::TableConfig PsBenchTable(uint32_t dim, int workers) {
  v1::TableConfig config = ps::EmbeddingTable(
      kPsTable, dim, ps::Adagrad(/*learning_rate=*/0.05f, /*initial_accumulator=*/1.0f), ps::Uniform(-1, 1));
  config.set_seed(7);
  config.set_num_workers(static_cast<uint32_t>(workers));
  *config.mutable_update_mode() = ps::Async();
  return config;
}

RowModel::RowModel(const v1::TableConfig& config, uint64_t rows)
    : dim_(config.dim()),
      seed_(config.seed()),
      learning_rate_(config.optimizer().learning_rate()),
      epsilon_(config.optimizer().epsilon()),
      initial_accumulator_(config.optimizer().initial_accumulator()),
      initializer_(ps::MakeInitializer(config.initializer()).value()),
      updates_(rows, 0),
      total_change_(1, 0.0),
      initial_(config.dim()) {}

void RowModel::Push(absl::Span<const uint64_t> ids, uint32_t times) {
  for (const uint64_t id : ids) updates_[id] += times;
}

absl::Status RowModel::Check(absl::Span<const uint64_t> ids, const float* rows) {
  for (size_t i = 0; i < ids.size(); ++i) TANDEM_RETURN_IF_ERROR(CheckOne(ids[i], rows + i * dim_));
  return absl::OkStatus();
}

absl::Status RowModel::CheckOne(uint64_t id, const float* row) {
  const uint32_t updates = updates_[id];
  constexpr double kSquare = double{kGradient} * kGradient;
  while (total_change_.size() <= updates) {
    const double accumulator = initial_accumulator_ + static_cast<double>(total_change_.size()) * kSquare;
    total_change_.push_back(total_change_.back() +
                            learning_rate_ * kGradient / (std::sqrt(accumulator) + epsilon_));
  }
  initializer_->Fill(seed_, id, initial_.data(), dim_);
  for (uint32_t d = 0; d < dim_; ++d) {
    const double want = initial_[d] - total_change_[updates];
    // The accumulators are exact because the gradient's square is a power of two. A weight is rounded at each
    // update.
    const double tolerance = 1e-6 + 6e-8 * (1 + std::abs(want)) * updates;
    if (std::abs(row[d] - want) <= tolerance) continue;
    return absl::DataLossError(absl::StrCat("element ", d, " of row ", id, " is ", row[d], "; after ",
                                            updates, " updates it must be ", want));
  }
  return absl::OkStatus();
}

}  // namespace tandem::bench
