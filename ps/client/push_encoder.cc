// SPDX-License-Identifier: Apache-2.0
#include "ps/client/push_encoder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "ps/client/check_gradients.h"
#include "ps/occurrences.h"
#include "ps/wire/occurrence_codec.h"
#include "ps/wire/value_codec.h"

namespace tandem::ps {
namespace {

// Smaller arrays are copied: a separate slice costs as much.
constexpr size_t kMinReferredBytes = 16 << 10;

// Returns whether the positions are contiguous and ascending.
bool AreContiguous(absl::Span<const uint32_t> positions) {
  for (size_t i = 1; i < positions.size(); ++i) {
    if (positions[i] != positions[0] + i) return false;
  }
  return true;
}

}  // namespace

void ClipGlobalNorms(const std::vector<uint32_t>& dims, const std::vector<float>& norms,
                     std::vector<PushPart>* parts, std::vector<std::vector<float>>* scaled) {
  const auto floats = [&](size_t p) {
    const PushPart& part = (*parts)[p];
    const size_t rows = part.pooling == v1::NONE ? part.ids.size() : NumBags(part);
    return absl::MakeConstSpan(part.gradients, rows * dims[p]);
  };
  std::map<std::string, double> squares;
  for (size_t p = 0; p < parts->size(); ++p) {
    if (norms[p] == 0) continue;
    double& sum = squares[(*parts)[p].table];
    for (const float g : floats(p)) sum += static_cast<double>(g) * g;
  }
  for (size_t p = 0; p < parts->size(); ++p) {
    const double length = norms[p] == 0 ? 0.0 : std::sqrt(squares[(*parts)[p].table]);
    // The server refuses gradients whose norm is NaN or Inf.
    if (!(length > norms[p]) || !std::isfinite(length)) continue;
    const float scale = static_cast<float>(norms[p] / length);
    std::vector<float>& to = scaled->emplace_back();
    for (const float g : floats(p)) to.push_back(g * scale);
    (*parts)[p].gradients = to.data();
  }
}

PushEncoder::PushEncoder(const ShardMap& map, std::vector<ResolvedPushPart> parts, Deduper* deduper,
                         BufferPool* pool)
    : parts_(parts.size()) {
  for (size_t p = 0; p < parts.size(); ++p) {
    Part& part = parts_[p];
    part.push = std::move(parts[p]);
    PushPart& push = part.push.part;
    part.segments.assign(push.segments.begin(), push.segments.end());
    if (push.pooling != v1::NONE) {
      if (push.pooling == v1::MEAN) DivideMeans(&part, pool);
      // The gradients belong to bags, so an encoding error belongs to no id.
      part.push.feedback = nullptr;
    } else {
      if (part.push.counts_occurrences) {
        part.occurrences.assign(push.occurrences.begin(), push.occurrences.end());
      }
      if (push.repeats) Merge(&part, deduper, pool);
    }
    if (map.num_servers() > 1) SplitByServer(map, push.ids, push.offsets, &part.split);
  }
}

void PushEncoder::Merge(Part* part, Deduper* deduper, BufferPool* pool) {
  PushPart& push = part->push.part;
  std::vector<uint32_t> index;
  deduper->Run(push.ids, &part->ids, &index);
  const size_t distinct = part->ids.size();
  // Copying all gradients to save a few does not pay; error feedback, however, needs distinct ids.
  const bool pays =
      part->push.feedback != nullptr ? distinct < push.ids.size() : distinct * 16 <= push.ids.size() * 15;
  if (!pays) return;
  const size_t dim = part->push.dim;
  part->gradients = pool->Get(distinct * dim * sizeof(float));
  auto* const sums = reinterpret_cast<float*>(part->gradients.get());
  size_t seen = 0;  // indices are assigned in order of first appearance
  size_t segment = 0;
  // An id belongs to the segment in which it appears first.
  const auto end_segments = [&](size_t position) {
    for (; segment < part->segments.size() && push.segments[segment] == position; ++segment) {
      part->segments[segment] = static_cast<uint32_t>(seen);
    }
  };
  for (size_t i = 0; i < index.size(); ++i) {
    end_segments(i);
    const float* const from = push.gradients + i * dim;
    float* const to = sums + index[i] * dim;
    if (index[i] == seen) {
      std::copy_n(from, dim, to);
      ++seen;
    } else {
      for (size_t d = 0; d < dim; ++d) to[d] += from[d];
    }
  }
  end_segments(index.size());
  if (part->push.counts_occurrences) {
    const std::vector<uint32_t> given = std::move(part->occurrences);
    part->occurrences.assign(distinct, 0);
    for (size_t i = 0; i < index.size(); ++i) {
      uint32_t& sum = part->occurrences[index[i]];
      sum = AddOccurrences(sum, given.empty() ? 1 : given[i]);
    }
  }
  push.ids = part->ids;
  push.gradients = sums;
}

void PushEncoder::DivideMeans(Part* part, BufferPool* pool) {
  PushPart& push = part->push.part;
  const size_t dim = part->push.dim;
  const size_t bags = NumBags(push);
  part->gradients = pool->Get(bags * dim * sizeof(float));
  auto* const quotients = reinterpret_cast<float*>(part->gradients.get());
  for (size_t bag = 0; bag < bags; ++bag) {
    const uint32_t count = push.offsets[bag + 1] - push.offsets[bag];
    const float scale = count > 1 ? 1.0f / static_cast<float>(count) : 1.0f;
    for (size_t i = bag * dim; i < (bag + 1) * dim; ++i) quotients[i] = push.gradients[i] * scale;
  }
  push.gradients = quotients;
}

absl::Status PushEncoder::CheckSums(uint32_t worker) const {
  for (const Part& part : parts_) {
    if (part.gradients == nullptr && !part.push.sums) continue;
    TANDEM_RETURN_IF_ERROR(
        CheckGradients(worker, part.push.part, part.push.dim, GradientLimit(part.push.wire)));
  }
  return absl::OkStatus();
}

std::optional<Slice> PushEncoder::InPlace(const Part& part, uint32_t server, const RequestRoute& route) {
  const PushPart& push = part.push.part;
  std::shared_ptr<const void> owner = part.gradients != nullptr ? part.gradients : push.owner;
  if (owner == nullptr || route.reads_in_place || push.pooling != v1::NONE || part.push.feedback != nullptr ||
      part.push.wire.push_values != v1::VALUES_F32) {
    return std::nullopt;
  }
  size_t first = 0;
  size_t rows = push.ids.size();
  if (!part.split.empty()) {
    const std::vector<uint32_t>& positions = part.split[server].positions;
    if (!AreContiguous(positions)) return std::nullopt;
    first = positions.empty() ? 0 : positions[0];
    rows = positions.size();
  }
  const size_t row_bytes = part.push.dim * sizeof(float);
  if (rows * row_bytes < kMinReferredBytes) return std::nullopt;
  return Slice(std::move(owner), reinterpret_cast<const char*>(push.gradients) + first * row_bytes,
               rows * row_bytes);
}

std::vector<uint32_t> PushEncoder::OccurrencesFor(const Part& part, uint32_t server) {
  std::vector<uint32_t> occurrences;
  if (part.occurrences.empty() || part.split.empty()) {
    occurrences = part.occurrences;
  } else {
    occurrences.reserve(part.split[server].positions.size());
    for (const uint32_t i : part.split[server].positions) occurrences.push_back(part.occurrences[i]);
  }
  if (OccurrenceWidth(occurrences) == 0) occurrences.clear();
  return occurrences;
}

EncodedPush PushEncoder::Encode(uint32_t server, const RequestRoute& route) {
  EncodedPush request;
  std::vector<IdArray> ids;
  ids.reserve(parts_.size());
  std::vector<std::optional<Slice>> in_place;      // gradients that are not copied
  std::vector<std::vector<uint32_t>> occurrences;  // those that are sent; empty: none of any part
  size_t total = 0;
  for (const Part& part : parts_) {
    const PushPart& push = part.push.part;
    const WireOptions& wire = part.push.wire;
    const bool pooled = push.pooling != v1::NONE;
    const absl::Span<const uint64_t> own =
        part.split.empty() ? push.ids : absl::MakeConstSpan(part.split[server].ids);
    ids.emplace_back(own, wire.pack_ids, route);
    v1::PushSlice* slice = request.header.add_slices();
    slice->set_table(push.table);
    ids.back().Describe(slice);
    slice->set_dim(part.push.dim);
    slice->set_values(wire.push_values);
    slice->set_learning_rate_factor(push.learning_rate_factor == 1.0f ? 0.0f : push.learning_rate_factor);
    const std::vector<uint32_t> segments =
        part.split.empty() ? part.segments : SplitSegments(part.segments, part.split[server]);
    slice->mutable_segment_ends()->Add(segments.begin(), segments.end());
    if (server < push.pulled_versions.size()) slice->set_pulled_version(push.pulled_versions[server]);
    if (pooled) {
      slice->set_pooling(v1::SUM);
      slice->set_num_bags(NumBags(push));
    }
    in_place.push_back(InPlace(part, server, route));
    total += ids.back().bytes() + (pooled ? (NumBags(push) + 1) * sizeof(uint32_t) : 0);
    if (!in_place.back().has_value()) {
      total += (pooled ? NumBags(push) : own.size()) * RowBytes(wire.push_values, part.push.dim);
    }
    if (part.occurrences.empty()) continue;
    occurrences.resize(parts_.size());
    std::vector<uint32_t>& sent = occurrences[in_place.size() - 1];
    sent = OccurrencesFor(part, server);
    if (sent.empty()) continue;
    slice->set_occurrence_bytes(OccurrenceWidth(sent));
    total += PackedOccurrenceBytes(own.size(), slice->occurrence_bytes());
  }
  PayloadWriter writer(route, total);
  for (size_t p = 0; p < parts_.size(); ++p) {
    const Part& part = parts_[p];
    const PushPart& push = part.push.part;
    const v1::ValueFormat values = part.push.wire.push_values;
    const size_t dim = part.push.dim;
    const ServerIds* const own = part.split.empty() ? nullptr : &part.split[server];
    const auto put_occurrences = [&] {
      if (occurrences.empty() || occurrences[p].empty()) return;
      const uint32_t width = request.header.slices(static_cast<int>(p)).occurrence_bytes();
      char* const out = writer.Reserve(PackedOccurrenceBytes(occurrences[p].size(), width));
      PackOccurrences(occurrences[p], width, out);
    };
    writer.Put(ids[p]);
    if (in_place[p].has_value()) {
      writer.Refer(*std::move(in_place[p]));
      put_occurrences();
      continue;
    }
    if (push.pooling != v1::NONE) {
      const absl::Span<const uint32_t> offsets =
          own == nullptr ? push.offsets : absl::MakeConstSpan(own->offsets);
      writer.Put(offsets.data(), offsets.size() * sizeof(uint32_t));
      char* const out = writer.Reserve(NumBags(push) * RowBytes(values, dim));
      EncodeRows(values, push.gradients, nullptr, NumBags(push), dim, out);
      continue;
    }
    const absl::Span<const uint64_t> rows = own == nullptr ? push.ids : absl::MakeConstSpan(own->ids);
    const uint32_t* const positions = own == nullptr ? nullptr : own->positions.data();
    char* const out = writer.Reserve(rows.size() * RowBytes(values, dim));
    if (part.push.feedback != nullptr) {
      part.push.feedback->Encode(values, rows, push.gradients, positions, out);
    } else if (values == v1::VALUES_F32 && positions == nullptr && route.reads_in_place &&
               route.copies != nullptr) {
      route.copies->Copy(out, reinterpret_cast<const char*>(push.gradients),
                         rows.size() * dim * sizeof(float));
    } else {
      EncodeRows(values, push.gradients, positions, rows.size(), dim, out);
    }
    put_occurrences();
  }
  request.payload = std::move(writer).Finish();
  return request;
}

}  // namespace tandem::ps
