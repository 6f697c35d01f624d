// SPDX-License-Identifier: Apache-2.0
#include "ps/server/request/split_push.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "ps/server/request/pooling.h"

namespace tandem::ps {
namespace {

using Group = std::vector<const BoundSlice*>;  // the slices of one table

// Copies the slices' ids, gradients, factors and occurrences one after the other.
void CopyGroup(const Group& group, uint32_t dim, bool factors, bool counted, BufferPool& buffers,
               TablePush* part) {
  size_t rows = 0;
  for (const BoundSlice* slice : group) rows += slice->ids.size();
  std::shared_ptr<char> memory =
      buffers.Get(rows * (sizeof(uint64_t) + (dim + 1) * sizeof(float) + (counted ? sizeof(uint32_t) : 0)));
  auto* ids = reinterpret_cast<uint64_t*>(memory.get());
  auto* gradients = reinterpret_cast<float*>(ids + rows);
  float* row_factors = gradients + rows * dim;
  auto* occurrences = reinterpret_cast<uint32_t*>(row_factors + rows);
  if (factors) part->row_factors = row_factors;
  if (counted) part->occurrences = occurrences;
  part->ids = absl::MakeConstSpan(ids, rows);
  part->gradients = gradients;
  part->memory = std::move(memory);
  for (const BoundSlice* slice : group) {
    part->pulled_version = std::min(part->pulled_version, slice->pulled_version);
    ids = std::copy(slice->ids.begin(), slice->ids.end(), ids);
    row_factors = std::fill_n(row_factors, slice->ids.size(), slice->learning_rate_factor);
    if (!slice->occurrences.empty()) {
      occurrences = std::copy(slice->occurrences.begin(), slice->occurrences.end(), occurrences);
    } else if (counted) {
      occurrences = std::fill_n(occurrences, slice->ids.size(), 1u);
    }
    if (slice->pooling == v1::NONE) {
      gradients = std::copy(slice->gradients.begin(), slice->gradients.end(), gradients);
    } else {
      ExpandBags(slice->gradients.data(), slice->offsets, dim, slice->pooling, gradients);
      gradients += slice->ids.size() * dim;
    }
  }
}

// Adds the segments of a group's slices to the part. `request` is the one that contains the slices.
std::vector<SliceSegments> AddSegments(const BoundRequest& request, const Group& group, TablePush* part) {
  std::vector<SliceSegments> segments;
  if (std::all_of(group.begin(), group.end(),
                  [](const BoundSlice* slice) { return slice->segment_ends.empty(); })) {
    return segments;
  }
  uint32_t begin = 0;
  for (const BoundSlice* slice : group) {
    const auto ids = static_cast<uint32_t>(slice->ids.size());
    const bool reported = !slice->segment_ends.empty();
    segments.push_back({.slice = static_cast<int>(slice - request.slices.data()),
                        .count = reported ? static_cast<int>(slice->segment_ends.size()) : 1,
                        .reported = reported});
    for (const uint32_t end : slice->segment_ends) part->segment_ends.push_back(begin + end);
    if (!reported) part->segment_ends.push_back(begin + ids);
    begin += ids;
  }
  return segments;
}

}  // namespace

SplitPush SplitByTable(const BoundRequest& request, BufferPool& buffers) {
  SplitPush split;
  std::vector<Group> groups;
  for (const BoundSlice& slice : request.slices) {
    const size_t at = std::find(split.tables.begin(), split.tables.end(), slice.table) - split.tables.begin();
    if (at == split.tables.size()) {
      split.tables.push_back(slice.table);
      split.wire_bytes.push_back(0);
      groups.emplace_back();
    }
    groups[at].push_back(&slice);
    split.wire_bytes[at] += slice.wire_bytes;
  }
  std::vector<size_t> in_place;  // parts that lie in the request's memory
  uint64_t in_place_bytes = 0;
  for (const Group& group : groups) {
    const BoundSlice& first = *group.front();
    const uint32_t dim = first.table->dim();
    TablePush& part = split.parts.emplace_back();
    // Pushes of other ranks than the table's workers, which only ASYNC tables take, advance no clock.
    const std::optional<uint32_t> worker = first.table->WorkerIndex(request.worker);
    part.worker = worker.value_or(0);
    part.step = request.step;
    part.deferred_gradients = request.deferred_gradients || !worker.has_value();
    part.learning_rate_factor = request.learning_rate_factor;
    part.batch_share = request.batch_share;
    split.segments.push_back(AddSegments(request, group, &part));
    part.pulled_version = first.pulled_version;
    part.position = first.position;
    const bool factors = std::any_of(group.begin(), group.end(), [](const BoundSlice* slice) {
      return slice->learning_rate_factor != 1.0f;
    });
    const bool counted = std::any_of(group.begin(), group.end(),
                                     [](const BoundSlice* slice) { return !slice->occurrences.empty(); });
    const bool stays = group.size() == 1 && first.pooling == v1::NONE && !factors;
    if (stays) {
      part.ids = first.ids;
      part.gradients = first.gradients.data();
      if (counted) part.occurrences = first.occurrences.data();
      // Holds the arrays' memory only. Holding the request would also hold its tables, and a table that
      // queues this part would then hold itself.
      part.memory = std::make_shared<const std::pair<Bytes, std::vector<std::shared_ptr<char>>>>(
          request.payload, request.copies);
    } else {
      CopyGroup(group, dim, factors, counted, buffers, &part);
    }
    part.memory_bytes = part.ids.size() * (sizeof(uint64_t) + (dim + (factors ? 1 : 0)) * sizeof(float) +
                                           (counted ? sizeof(uint32_t) : 0));
    if (stays) {
      in_place.push_back(split.parts.size() - 1);
      in_place_bytes += part.memory_bytes;
    }
  }
  // Together they hold all of the request's memory: the ids as they came and their copy, too.
  for (const size_t i : in_place) {
    if (in_place_bytes == 0) break;
    TablePush& part = split.parts[i];
    const double share = static_cast<double>(part.memory_bytes) / static_cast<double>(in_place_bytes);
    part.memory_bytes = static_cast<uint64_t>(share * static_cast<double>(request.memory_bytes));
  }
  return split;
}

}  // namespace tandem::ps
