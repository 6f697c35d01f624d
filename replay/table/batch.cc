// SPDX-License-Identifier: Apache-2.0
#include "replay/table/batch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/round_up.h"

namespace tandem::replay {
namespace {

constexpr size_t kAhead = 8;  // items
// A run of steps of at least as many bytes is sent from its chunk's memory: a slice costs about 0.2 us.
constexpr size_t kLeastShared = 4096;

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
      static_cast<char*>(::operator new (bytes, std::align_val_t{kBatchAlignment})),
      [](char* memory) { ::operator delete (memory, std::align_val_t{kBatchAlignment}); });
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

// Copies column `c` of all items, which has `bytes` bytes, to `out`, and zeros up to a multiple of
// kBatchAlignment. Returns their end.
char* GatherColumn(const Sample& sample, size_t c, size_t bytes, char* out) {
  const size_t n = sample.items.size();
  char* end = out;
  for (size_t i = 0; i < n; ++i) {
    if (i + 2 * kAhead < n) __builtin_prefetch(FirstChunk(sample.items[i + 2 * kAhead]));
    if (i + kAhead < n) PrefetchValues(*sample.items[i + kAhead].trajectory, c);
    end = sample.items[i].trajectory->Copy(c, end);
  }
  out += RoundUp(bytes, kBatchAlignment);
  std::memset(end, 0, static_cast<size_t>(out - end));
  return out;
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

Batch DescribeBatch(const Sample& sample, size_t* bytes) {
  Batch batch;
  *bytes = 0;
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
  for (size_t c = 0; c < signature.size(); ++c) {
    BatchColumn& column = batch.columns.emplace_back();
    column.column = signature.column(c);
    CountSteps(sample, c, &column);
    column.bytes = column.total_steps * signature.step_bytes(c);
    *bytes += RoundUp(column.bytes, kBatchAlignment);
  }
  return batch;
}

Batch GatherBatch(const Sample& sample, absl::FunctionRef<std::shared_ptr<char>(size_t bytes)> allocate) {
  size_t total = 0;
  Batch batch = DescribeBatch(sample, &total);
  if (batch.size() == 0) return batch;
  std::shared_ptr<char> memory = allocate(total);
  if (memory == nullptr) memory = AlignedMemory(total);
  char* out = memory.get();
  for (size_t c = 0; c < batch.columns.size(); ++c) {
    batch.columns[c].data = std::shared_ptr<const char>(memory, out);
    out = GatherColumn(sample, c, batch.columns[c].bytes, out);
  }
  return batch;
}

Bytes ShareValues(const Sample& sample, const Batch& described, BufferPool* buffers) {
  static constexpr char kZeros[kBatchAlignment] = {};
  std::vector<bool> shared;
  size_t copied = 0;
  for (size_t c = 0; c < described.columns.size(); ++c) {
    const size_t bytes = described.columns[c].bytes;
    size_t runs = 0;
    for (const SampledItem& item : sample.items)
      runs += item.trajectory->slices_end[c] - item.trajectory->slices_begin(c);
    shared.push_back(bytes >= kLeastShared * runs);
    if (!shared.back()) copied += RoundUp(bytes, kBatchAlignment);
  }
  std::shared_ptr<char> memory = copied == 0 ? nullptr : buffers->Get(copied);
  char* out = memory.get();
  Bytes values;
  for (size_t c = 0; c < described.columns.size(); ++c) {
    const size_t bytes = described.columns[c].bytes;
    if (shared[c]) {
      for (const SampledItem& item : sample.items) item.trajectory->Share(c, &values);
      values.Append(Slice::Unowned(kZeros, RoundUp(bytes, kBatchAlignment) - bytes));
      continue;
    }
    char* const begin = out;
    out = GatherColumn(sample, c, bytes, out);
    values.Append(Slice(memory, begin, static_cast<size_t>(out - begin)));
  }
  return values;
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
