// SPDX-License-Identifier: Apache-2.0
#include "ps/server/table/merged_update.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/trace/trace.h"
#include "ps/trace_kinds.h"

namespace tandem::ps {

absl::StatusOr<uint64_t> ApplyMerged(TableStorage& storage, uint32_t dim,
                                     absl::Span<const TablePush* const> pushes, float batch_share,
                                     BufferPool& buffers, Helpers* helpers) {
  const TablePush* only = nullptr;
  size_t parts = 0;
  size_t rows = 0;
  for (const TablePush* push : pushes) {
    if (push->ids.empty()) continue;
    only = push;
    ++parts;
    rows += push->ids.size();
  }
  for (const TablePush* push : pushes) {
    trace::End(kTraceQueuedPush, push->traced, static_cast<int64_t>(push->step), push->worker,
               static_cast<int64_t>(push->ids.size()));
  }
  const trace::Span traced(kTraceApply, static_cast<int64_t>(rows), static_cast<int64_t>(parts));
  ApplyOptions options{.learning_rate_factor = pushes.front()->learning_rate_factor,
                       .batch_share = batch_share,
                       .helpers = helpers};
  // An update without rows is applied, too: the table's clock must be the same on every server.
  if (parts == 0) return storage.Apply({}, nullptr, options);
  if (parts == 1) {
    options.row_factors = only->row_factors;
    options.occurrences = only->occurrences;
    return storage.Apply(only->ids, only->gradients, options);
  }
  const bool factors = std::any_of(pushes.begin(), pushes.end(),
                                   [](const TablePush* push) { return push->row_factors != nullptr; });
  const bool counted = std::any_of(pushes.begin(), pushes.end(),
                                   [](const TablePush* push) { return push->occurrences != nullptr; });
  const size_t row_bytes =
      sizeof(uint64_t) + (dim + (factors ? 1 : 0)) * sizeof(float) + (counted ? sizeof(uint32_t) : 0);
  const std::shared_ptr<char> memory = buffers.Get(rows * row_bytes);
  auto* ids = reinterpret_cast<uint64_t*>(memory.get());
  auto* gradients = reinterpret_cast<float*>(ids + rows);
  float* const row_factors = factors ? gradients + rows * dim : nullptr;
  uint32_t* const occurrences =
      counted ? reinterpret_cast<uint32_t*>(gradients + rows * (dim + (factors ? 1 : 0))) : nullptr;
  size_t at = 0;
  for (const TablePush* push : pushes) {
    const size_t count = push->ids.size();
    if (count == 0) continue;
    std::memcpy(ids + at, push->ids.data(), count * sizeof(uint64_t));
    std::memcpy(gradients + at * dim, push->gradients, count * dim * sizeof(float));
    if (push->row_factors != nullptr) {
      std::copy_n(push->row_factors, count, row_factors + at);
    } else if (factors) {
      std::fill_n(row_factors + at, count, 1.0f);
    }
    if (push->occurrences != nullptr) {
      std::copy_n(push->occurrences, count, occurrences + at);
    } else if (counted) {
      std::fill_n(occurrences + at, count, 1u);
    }
    at += count;
  }
  options.row_factors = row_factors;
  options.occurrences = occurrences;
  return storage.Apply(absl::MakeConstSpan(ids, rows), gradients, options);
}

}  // namespace tandem::ps
