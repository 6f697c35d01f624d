// SPDX-License-Identifier: Apache-2.0
#include "replay/table/batch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/round_up.h"

namespace tandem::replay {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kAhead = 8;  // items

const Chunk* FirstChunk(const SampledItem& item) {
  return item.trajectory->chunks.empty() ? nullptr : item.trajectory->chunks[0].get();
}

// Fetches the first values of a column into the cache: items of few bytes lie apart.
void PrefetchValues(const Trajectory& trajectory, size_t c) {
  const ChunkSlice& slice = trajectory.slices[trajectory.slices_begin(c)];
  const char* const values = trajectory.chunks[slice.chunk]->column(trajectory.layout->sources[c]) +
                             slice.offset * trajectory.layout->items->step_bytes(c);
  __builtin_prefetch(values);
  __builtin_prefetch(values + 64);
}

std::shared_ptr<char> AlignedMemory(size_t bytes) {
  return std::shared_ptr<char>(
      static_cast<char*>(::operator new (bytes, std::align_val_t{kAlignment})),
      [](char* memory) { ::operator delete (memory, std::align_val_t{kAlignment}); });
}

// Counts the steps of column `c` of all items.
void CountSteps(const Sample& sample, size_t c, BatchColumn* column) {
  column->steps = static_cast<uint32_t>(sample.items[0].trajectory->steps(c));
  for (const SampledItem& item : sample.items) {
    const auto steps = static_cast<uint32_t>(item.trajectory->steps(c));
    column->total_steps += steps;
    if (steps != column->steps && column->lengths.empty()) {
      column->lengths.assign(static_cast<size_t>(&item - sample.items.data()), column->steps);
      column->steps = 0;
    }
    if (column->steps == 0) column->lengths.push_back(steps);
  }
}

}  // namespace

const BatchColumn* Batch::Find(absl::string_view name) const {
  for (const BatchColumn& column : columns) {
    if (column.column.name == name) return &column;
  }
  return nullptr;
}

std::vector<int64_t> Batch::Lags() const {
  std::vector<int64_t> lags(size(), 0);
  for (size_t i = 0; committed_version && i < size(); ++i) lags[i] = *committed_version - min_versions[i];
  return lags;
}

Batch GatherBatch(const Sample& sample, absl::FunctionRef<std::shared_ptr<char>(size_t bytes)> allocate) {
  Batch batch;
  batch.table_items = sample.table_items;
  batch.mass = sample.mass;
  batch.committed_version = sample.committed_version;
  const size_t n = sample.items.size();
  if (n == 0) return batch;
  batch.keys.reserve(n);
  for (const SampledItem& item : sample.items) {
    batch.keys.push_back(item.key);
    batch.probabilities.push_back(item.probability);
    batch.priorities.push_back(item.priority);
    batch.times_sampled.push_back(item.times_sampled);
    batch.min_versions.push_back(item.trajectory->min_version);
    batch.max_versions.push_back(item.trajectory->max_version);
  }
  const Signature& signature = *sample.items[0].trajectory->layout->items;
  size_t total = 0;
  for (size_t c = 0; c < signature.size(); ++c) {
    BatchColumn& column = batch.columns.emplace_back();
    column.column = signature.column(c);
    CountSteps(sample, c, &column);
    column.bytes = column.total_steps * signature.step_bytes(c);
    total += RoundUp(column.bytes, kAlignment);
  }
  std::shared_ptr<char> memory = allocate(total);
  if (memory == nullptr) memory = AlignedMemory(total);
  char* out = memory.get();
  for (size_t c = 0; c < signature.size(); ++c) {
    BatchColumn& column = batch.columns[c];
    column.data = std::shared_ptr<const char>(memory, out);
    char* end = out;
    for (size_t i = 0; i < n; ++i) {
      if (i + 2 * kAhead < n) __builtin_prefetch(FirstChunk(sample.items[i + 2 * kAhead]));
      if (i + kAhead < n) PrefetchValues(*sample.items[i + kAhead].trajectory, c);
      end = sample.items[i].trajectory->Copy(c, end);
    }
    out += RoundUp(column.bytes, kAlignment);
    std::memset(end, 0, static_cast<size_t>(out - end));
  }
  return batch;
}

void PadColumn(BatchColumn* column) {
  if (column->lengths.empty() || column->steps != 0) return;  // padded already
  const uint32_t steps = *std::max_element(column->lengths.begin(), column->lengths.end());
  const size_t step_bytes = column->bytes / column->total_steps;
  const size_t bytes = column->lengths.size() * steps * step_bytes;
  std::shared_ptr<char> padded = AlignedMemory(bytes);
  const char* from = column->data.get();
  char* to = padded.get();
  for (const uint32_t length : column->lengths) {
    std::memcpy(to, from, length * step_bytes);
    std::memset(to + length * step_bytes, 0, (steps - length) * step_bytes);
    from += length * step_bytes;
    to += steps * step_bytes;
  }
  column->data = std::move(padded);
  column->bytes = bytes;
  column->steps = steps;
}

std::vector<double> ImportanceWeights(absl::Span<const double> probabilities, uint64_t items, double beta,
                                      WeightScale scale) {
  std::vector<double> weights;
  weights.reserve(probabilities.size());
  for (const double probability : probabilities) {
    weights.push_back(std::pow(1.0 / (static_cast<double>(items) * probability), beta));
  }
  if (scale == WeightScale::kBatchMaximum && !weights.empty()) {
    const double largest = *std::max_element(weights.begin(), weights.end());
    for (double& weight : weights) weight /= largest;
  }
  return weights;
}

}  // namespace tandem::replay
