// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_TABLE_BATCH_H_
#define TANDEM_REPLAY_TABLE_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/buffer_pool.h"
#include "base/bytes.h"
#include "base/numeric/dtype.h"
#include "base/status.h"
#include "replay/chunks/signature.h"
#include "replay/table/table.h"

namespace tandem::replay {

// One column of a batch: the values of all its items in one array, item after item, step after step. If all
// items have the same number of steps, that is an array [batch, steps, shape...].
struct BatchColumn {
  Column column;
  // Steps of each item; empty if all have `steps`.
  std::vector<uint32_t> lengths;
  uint32_t steps = 0;                // of each item; 0 if they differ
  uint64_t total_steps = 0;          // of all items
  std::shared_ptr<const char> data;  // aligned to 64 bytes in batches of a process's own tables, else to 8
  size_t bytes = 0;

  // Returns the values. T must be the C++ type of the column's dtype.
  template <ElementType T>
  absl::Span<const T> values() const {
    TANDEM_CHECK(DTypeOf<T>::value == column.dtype);
    return {reinterpret_cast<const T*>(data.get()), bytes / sizeof(T)};
  }
};

// Columns begin at multiples of this number of bytes in a batch's memory.
inline constexpr size_t kBatchAlignment = 64;

// Sampled items with their values. The first arrays have an element for each item, in the order of the draws.
struct Batch {
  std::vector<uint64_t> keys;         // for UpdatePriorities
  std::vector<double> probabilities;  // of each draw
  std::vector<double> priorities;     // when the item was drawn
  std::vector<uint32_t> times_sampled;
  std::vector<int64_t> min_versions, max_versions;  // policy versions of the item's steps
  std::vector<BatchColumn> columns;
  uint64_t table_items = 0;  // of the table before the first draw
  double mass = 0;           // Selector::mass then
  // The committed version of the policy when the sample was drawn; nullopt: none had been committed.
  std::optional<int64_t> committed_version;

  size_t size() const { return keys.size(); }
  // Returns a column, or nullptr.
  const BatchColumn* Find(absl::string_view name) const;
  // Returns the lag of each item: committed_version - min_versions. Zeros without a committed version.
  std::vector<int64_t> Lags() const;
};

// Returns the items of `sample` with their values, which are copied into memory from `allocate`: `bytes`
// bytes, aligned to 64, or nullptr to use the heap. All columns lie in one allocation, each aligned to
// kBatchAlignment. Requires that all items have the same columns, as those of one table do.
Batch GatherBatch(
    const Sample& sample, absl::FunctionRef<std::shared_ptr<char>(size_t bytes)> allocate = [](size_t) {
      return std::shared_ptr<char>();
    });

// Returns the items of `sample` as GatherBatch does, but columns have no values: their `data` is null. Sets
// `*bytes` to the size of the memory that GatherBatch would allocate for them.
Batch DescribeBatch(const Sample& sample, size_t* bytes);
// Returns the bytes that GatherBatch would write to its memory. `described` is DescribeBatch(sample). Values
// of long runs of steps are not copied: the slices share the memory of their chunks. The others are copied
// into memory of `buffers`.
Bytes ShareValues(const Sample& sample, const Batch& described, BufferPool* buffers);

// Pads a column whose items differ in their number of steps with zero bytes, to the largest number. No effect
// on columns whose items have the same number of steps, or that are padded already. BatchColumn::lengths
// keeps the numbers of steps.
void PadColumn(BatchColumn* column);

// How importance weights are scaled.
enum class WeightScale {
  kNone,
  kBatchMaximum,  // divided by the largest weight of the batch (Schaul et al. 2016): at most 1
};
// Returns (1 / (items * probability))^beta for each draw, scaled: with beta 1 and kNone, the mean of f *
// weight over draws is an unbiased estimate of the mean of f over the table's items. Requires probabilities
// above 0, items >= 1 and beta >= 0.
std::vector<double> ImportanceWeights(absl::Span<const double> probabilities, uint64_t items, double beta,
                                      WeightScale scale = WeightScale::kBatchMaximum);

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_TABLE_BATCH_H_
