// SPDX-License-Identifier: Apache-2.0
#include "worker/step/lookup.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem::worker {
namespace {

// An index entry with this bit is the slot of a replicated row, otherwise the position of a pulled one.
constexpr uint32_t kReplicated = uint32_t{1} << 31;

// Where rows lie, or their gradients: the pulled ones, and the replicated ones by slot.
template <typename T>
struct Places {
  T* pulled;
  T* replicated;  // nullptr if the batch has no replicated rows
  T* Row(uint32_t index, size_t dim) const {
    T* const bases[] = {pulled, replicated};  // no branch: hot and cold rows alternate at random
    return bases[index / kReplicated] + (index % kReplicated) * dim;
  }
};

// Calls fn with the dimension as a compile-time constant if it is a common one, else as a number.
template <typename Fn>
void WithDim(size_t dim, const Fn& fn) {
  switch (dim) {
    case 1:
      return fn(std::integral_constant<size_t, 1>());
    case 8:
      return fn(std::integral_constant<size_t, 8>());
    case 16:
      return fn(std::integral_constant<size_t, 16>());
    case 32:
      return fn(std::integral_constant<size_t, 32>());
    default:
      return fn(dim);
  }
}

void CopyRows(const Places<const float>& rows, size_t dim, const uint32_t* index, size_t n, size_t out_stride,
              float* out) {
  WithDim(dim, [&](auto d) {
    const size_t floats = d;
    if (rows.replicated == nullptr) {
      for (size_t b = 0; b < n; ++b) {
        std::memcpy(out + b * out_stride, rows.pulled + index[b] * floats, floats * sizeof(float));
      }
    } else {
      for (size_t b = 0; b < n; ++b) {
        std::memcpy(out + b * out_stride, rows.Row(index[b], floats), floats * sizeof(float));
      }
    }
  });
}

void AddRows(const float* in, size_t in_stride, size_t dim, const uint32_t* index, size_t n,
             const Places<float>& rows) {
  WithDim(dim, [&](auto d) {
    const size_t floats = d;
    auto add = [&](size_t b, float* __restrict row) {
      const float* __restrict from = in + b * in_stride;
      for (size_t i = 0; i < floats; ++i) row[i] += from[i];
    };
    if (rows.replicated == nullptr) {
      for (size_t b = 0; b < n; ++b) add(b, rows.pulled + index[b] * floats);
    } else {
      for (size_t b = 0; b < n; ++b) add(b, rows.Row(index[b], floats));
    }
  });
}

bool IsPlain(const SparseColumn& column) { return column.offsets.empty() && column.weights.empty(); }
// Returns the range [begin, end) of the ids of example b.
std::pair<size_t, size_t> Bag(const SparseColumn& column, size_t b) {
  if (column.offsets.empty()) return {b, b + 1};
  return {column.offsets[b], column.offsets[b + 1]};
}

}  // namespace

ps::Placement PlacementOf(const LookupTable& table, absl::Span<const size_t> segment) {
  ps::Placement placement = ps::Placement::kAuto;
  if (table.placements.empty()) return placement;
  for (const size_t k : segment) {
    if (table.placements[k] == ps::Placement::kSharded) return ps::Placement::kSharded;
    if (table.placements[k] == ps::Placement::kReplicated) placement = ps::Placement::kReplicated;
  }
  return placement;
}

std::vector<std::vector<size_t>> SegmentsOf(const LookupPlan& plan, const LookupTable& table) {
  std::vector<std::vector<size_t>> segments;
  const size_t features = table.features.size();
  std::vector<bool> done(features, false);
  for (size_t i = 0; i < features; ++i) {
    if (done[i]) continue;
    std::vector<size_t> segment = {i};
    for (const std::vector<int>& shared : plan.shared_features) {
      if (std::find(shared.begin(), shared.end(), table.features[i]) == shared.end()) continue;
      for (size_t j = i + 1; j < features; ++j) {
        if (std::find(shared.begin(), shared.end(), table.features[j]) != shared.end()) segment.push_back(j);
      }
    }
    for (const size_t j : segment) done[j] = true;
    segments.push_back(std::move(segment));
  }
  return segments;
}

ServedCounts NoneServed(const LookupPlan& plan) {
  ServedCounts none;
  for (const LookupTable& table : plan.tables) none.emplace_back(SegmentsOf(plan, table).size());
  return none;
}

void AddServed(const ServedCounts& other, ServedCounts* sum) {
  for (size_t t = 0; t < other.size(); ++t) {
    for (size_t s = 0; s < other[t].size(); ++s) (*sum)[t][s].Add(other[t][s]);
  }
}

Lookup::Lookup(const LookupPlan* plan, ps::ReplicatedTables* replicas)
    : plan_(plan), replicas_(replicas), rows_(plan->tables.size()), served_(NoneServed(*plan)) {
  for (size_t t = 0; t < plan->tables.size(); ++t) {
    const LookupTable& table = plan->tables[t];
    (table.wide ? has_wide_ : has_embeddings_) = true;
    auto same = std::find_if(groups_.begin(), groups_.end(),
                             [&](const Group& group) { return group.features == table.features; });
    if (same == groups_.end()) {
      same = groups_.insert(groups_.end(),
                            Group{.features = table.features, .segments = SegmentsOf(*plan, table)});
    }
    rows_[t].group = static_cast<int>(same - groups_.begin());
    for (const std::vector<size_t>& segment : same->segments) {
      rows_[t].placements.push_back(PlacementOf(table, segment));
    }
  }
}

absl::Status Lookup::Prepare(const Batch* batch) {
  batch_ = batch;
  if (batch->sparse.size() != static_cast<size_t>(plan_->num_features)) {
    return absl::InvalidArgumentError(absl::StrCat("the batch has ", batch->sparse.size(),
                                                   " sparse features, the job ", plan_->num_features));
  }
  num_ids_ = num_unique_ = 0;
  for (Group& group : groups_) {
    if (plan_->server_pooling) {
      FlattenGroup(&group);
    } else {
      DedupeGroup(&group);
    }
  }
  for (size_t t = 0; t < rows_.size(); ++t) {
    const Group& group = groups_[rows_[t].group];
    SplitRows(t);
    const size_t rows = plan_->server_pooling ? group.offsets.size() - 1 : PulledIds(rows_[t]).size();
    rows_[t].values.resize(rows * plan_->tables[t].dim);
    num_ids_ += plan_->server_pooling ? group.unique.size() : group.index.size();
    num_unique_ += PulledIds(rows_[t]).size();
  }
  return absl::OkStatus();
}

void Lookup::SplitRows(size_t t) {
  Rows& rows = rows_[t];
  rows.split = false;
  if (plan_->server_pooling) return;
  const Group& group = groups_[rows.group];
  std::vector<SegmentCounts>& counts = served_[t];
  for (size_t s = 0; s < counts.size(); ++s) {
    counts[s] = {.pulled = group.segment_ends[s] - (s == 0 ? 0 : group.segment_ends[s - 1])};
    for (const size_t k : group.segments[s]) counts[s].ids += batch_->sparse[group.features[k]].ids.size();
  }
  const ps::ReplicatedRows* const replicas = replicas_ == nullptr ? nullptr : replicas_->table(t);
  if (replicas == nullptr) return;
  rows.slots.clear();
  rows.pulled.clear();
  rows.pulled_ends.clear();
  places_.resize(group.unique.size());
  constexpr size_t kAhead = 16;  // ids whose entries are fetched from memory beforehand
  bool automatic = false;
  for (const ps::Placement placement : rows.placements) automatic |= placement == ps::Placement::kAuto;
  size_t u = 0;
  for (size_t s = 0; s < rows.placements.size(); ++s) {
    const ps::Placement placement = rows.placements[s];
    const size_t replicated_before = rows.slots.size();
    remembered_.clear();
    for (; u < group.segment_ends[s]; ++u) {
      if (u + kAhead < group.unique.size()) replicas->Prefetch(group.unique[u + kAhead]);
      const uint64_t id = group.unique[u];
      const uint32_t slot =
          placement == ps::Placement::kSharded ? ps::ReplicatedRows::kAbsent : replicas->Find(id);
      if (slot != ps::ReplicatedRows::kAbsent) {
        places_[u] = slot | kReplicated;
        rows.slots.push_back(slot);
        // Rows of a checkpoint are not known as wanted, and would leave if they are rare.
        const bool wanted = placement == ps::Placement::kReplicated;
        if (wanted && !replicas_->IsWanted(t, slot)) remembered_.push_back(id);
        continue;
      }
      places_[u] = static_cast<uint32_t>(rows.pulled.size());
      rows.pulled.push_back(id);
      if (placement != ps::Placement::kAuto) remembered_.push_back(id);
    }
    rows.pulled_ends.push_back(static_cast<uint32_t>(rows.pulled.size()));
    counts[s].replicated = rows.slots.size() - replicated_before;
    counts[s].pulled -= counts[s].replicated;
    if (remembered_.empty()) continue;
    if (placement == ps::Placement::kReplicated) {
      replicas_->RememberWanted(t, remembered_);
    } else if (automatic) {  // otherwise nothing would replicate them
      replicas_->RememberUnwanted(t, remembered_);
    }
  }
  if (rows.slots.empty()) return;
  rows.split = true;
  rows.index.resize(group.index.size());
  for (size_t s = 0; s < counts.size(); ++s) {
    for (const size_t k : group.segments[s]) {
      const size_t begin = group.start[k], end = begin + batch_->sparse[group.features[k]].ids.size();
      for (size_t i = begin; i < end; ++i) {
        rows.index[i] = places_[group.index[i]];
        counts[s].replicated_ids += rows.index[i] / kReplicated;
      }
    }
  }
}

void Lookup::CountForChoice() {
  if (replicas_ == nullptr || !replicas_->starting()) return;
  for (size_t t = 0; t < rows_.size(); ++t) {
    if (replicas_->table(t) == nullptr) continue;
    const Rows& rows = rows_[t];
    const absl::Span<const uint64_t> ids = PulledIds(rows);
    const std::vector<uint32_t>& ends = rows.split ? rows.pulled_ends : groups_[rows.group].segment_ends;
    for (size_t s = 0; s < rows.placements.size(); ++s) {
      if (rows.placements[s] != ps::Placement::kAuto) continue;
      const size_t begin = s == 0 ? 0 : ends[s - 1];
      replicas_->CountBatch(t, ids.subspan(begin, ends[s] - begin));
    }
  }
}

absl::Span<const uint64_t> Lookup::PulledIds(const Rows& rows) const {
  return rows.split ? rows.pulled : groups_[rows.group].unique;
}

const uint32_t* Lookup::IndexOf(const Rows& rows, size_t feature) const {
  const Group& group = groups_[rows.group];
  return (rows.split ? rows.index.data() : group.index.data()) + group.start[feature];
}

void Lookup::DedupeGroup(Group* group) {
  group->unique.clear();
  group->index.clear();
  group->start.clear();
  for (const int f : group->features) {
    group->start.push_back(group->index.size());
    group->index.resize(group->index.size() + batch_->sparse[f].ids.size());
  }
  // Features that share no ids are deduplicated one by one, because their small hash tables stay in the L1
  // cache.
  group->segment_ends.clear();
  for (const std::vector<size_t>& segment : group->segments) {
    absl::Span<const uint64_t> ids = batch_->sparse[group->features[segment[0]]].ids;
    if (segment.size() > 1) {
      ids_.clear();
      for (const size_t j : segment) {
        const std::vector<uint64_t>& more = batch_->sparse[group->features[j]].ids;
        ids_.insert(ids_.end(), more.begin(), more.end());
      }
      ids = ids_;
    }
    deduper_.Run(ids, &set_unique_, &set_index_);
    const uint32_t base = static_cast<uint32_t>(group->unique.size());
    group->unique.insert(group->unique.end(), set_unique_.begin(), set_unique_.end());
    group->segment_ends.push_back(static_cast<uint32_t>(group->unique.size()));
    size_t from = 0;
    for (const size_t j : segment) {
      const size_t n = batch_->sparse[group->features[j]].ids.size();
      uint32_t* to = group->index.data() + group->start[j];
      for (size_t k = 0; k < n; ++k) to[k] = base + set_index_[from + k];
      from += n;
    }
  }
}

void Lookup::FlattenGroup(Group* group) {
  group->unique.clear();
  group->offsets.assign(1, 0);
  for (size_t b = 0; b < batch_->size; ++b) {
    for (const int f : group->features) {
      const SparseColumn& column = batch_->sparse[f];
      const auto [begin, end] = Bag(column, b);
      group->unique.insert(group->unique.end(), column.ids.begin() + begin, column.ids.begin() + end);
      group->offsets.push_back(static_cast<uint32_t>(group->unique.size()));
    }
  }
}

std::vector<ps::PullPart> Lookup::PullParts() {
  std::vector<ps::PullPart> parts(rows_.size());
  for (size_t t = 0; t < rows_.size(); ++t) {
    const Group& group = groups_[rows_[t].group];
    parts[t].table = plan_->tables[t].name;
    parts[t].ids = PulledIds(rows_[t]);
    parts[t].rows = rows_[t].values.data();
    if (plan_->server_pooling) {
      parts[t].pooling = plan_->mean ? ps::v1::MEAN : ps::v1::SUM;
      parts[t].offsets = group.offsets;
    }
  }
  return parts;
}

float Lookup::Weight(const SparseColumn& column, size_t begin, size_t end, size_t i) const {
  const float weight = column.weights.empty() ? 1.0f : column.weights[i];
  return plan_->mean ? weight / static_cast<float>(end - begin) : weight;
}

void Lookup::Gather(ModelInput* input) {
  const size_t batch = batch_->size;
  const size_t features = plan_->num_features;
  input->batch = batch;
  input->dense = batch_->num_dense > 0 ? batch_->dense.data() : nullptr;
  if (has_embeddings_) {
    embeddings_.resize(batch * features * plan_->dim);
    input->embeddings = embeddings_.data();
  }
  if (plan_->square_sums) {
    square_sums_.assign(batch * plan_->dim, 0.0f);
    input->square_sums = square_sums_.data();
  }
  if (has_wide_) {
    wide_.resize(batch * features);
    input->wide = wide_.data();
  }
  for (size_t t = 0; t < rows_.size(); ++t) {
    if (plan_->server_pooling) {
      CopyBags(t);
    } else {
      GatherTable(t);
    }
  }
}

void Lookup::CopyBags(size_t t) {
  const LookupTable& table = plan_->tables[t];
  const Group& group = groups_[rows_[t].group];
  const size_t dim = table.dim, stride = plan_->num_features * dim, per_example = group.features.size();
  float* const out = table.wide ? wide_.data() : embeddings_.data();
  for (size_t b = 0; b < batch_->size; ++b) {
    for (size_t k = 0; k < per_example; ++k) {
      std::memcpy(out + b * stride + group.features[k] * dim,
                  rows_[t].values.data() + (b * per_example + k) * dim, dim * sizeof(float));
    }
  }
}

void Lookup::GatherTable(size_t t) {
  const LookupTable& table = plan_->tables[t];
  const Rows& rows = rows_[t];
  const Group& group = groups_[rows.group];
  const size_t dim = table.dim, stride = plan_->num_features * dim;
  float* const out = table.wide ? wide_.data() : embeddings_.data();
  const Places<const float> values = {.pulled = rows.values.data(),
                                      .replicated = rows.split ? replicas_->table(t)->weights(0) : nullptr};
  for (size_t k = 0; k < group.features.size(); ++k) {
    const int f = group.features[k];
    const SparseColumn& column = batch_->sparse[f];
    const uint32_t* index = IndexOf(rows, k);
    float* to = out + f * dim;
    if (IsPlain(column)) {
      CopyRows(values, dim, index, batch_->size, stride, to);
    } else {
      for (size_t b = 0; b < batch_->size; ++b) {
        float* __restrict sum = to + b * stride;
        std::fill_n(sum, dim, 0.0f);
        const auto [begin, end] = Bag(column, b);
        for (size_t i = begin; i < end; ++i) {
          const float weight = Weight(column, begin, end, i);
          const float* __restrict row = values.Row(index[i], dim);
          for (size_t d = 0; d < dim; ++d) sum[d] += weight * row[d];
        }
      }
    }
    if (!plan_->square_sums || table.wide) continue;
    for (size_t b = 0; b < batch_->size; ++b) {
      float* __restrict sum = square_sums_.data() + b * dim;
      const auto [begin, end] = Bag(column, b);
      for (size_t i = begin; i < end; ++i) {
        const float weight = Weight(column, begin, end, i);
        const float* __restrict row = values.Row(index[i], dim);
        for (size_t d = 0; d < dim; ++d) sum[d] += weight * row[d] * (weight * row[d]);
      }
    }
  }
}

InputGradients Lookup::GradientBuffers() {
  InputGradients gradients;
  if (has_embeddings_) {
    d_embeddings_.resize(embeddings_.size());
    gradients.embeddings = d_embeddings_.data();
  }
  if (plan_->square_sums) {
    d_square_sums_.resize(square_sums_.size());
    gradients.square_sums = d_square_sums_.data();
  }
  if (has_wide_) {
    d_wide_.resize(wide_.size());
    gradients.wide = d_wide_.data();
  }
  return gradients;
}

void Lookup::ScatterReplicated() {
  for (size_t t = 0; t < rows_.size(); ++t) {
    if (!rows_[t].split) continue;
    ScatterTable(t);
    ps::ReplicatedRows* const replicas = replicas_->table(t);
    for (const uint32_t slot : rows_[t].slots) replicas->Touch(slot);
  }
}

std::vector<ps::PushPart> Lookup::Scatter() {
  std::vector<ps::PushPart> parts(rows_.size());
  for (size_t t = 0; t < rows_.size(); ++t) {
    const LookupTable& table = plan_->tables[t];
    const Rows& rows = rows_[t];
    const Group& group = groups_[rows.group];
    if (plan_->server_pooling) {
      ScatterBags(t);
    } else if (!rows.split) {
      ScatterTable(t);
    }
    parts[t].table = table.name;
    parts[t].ids = PulledIds(rows);
    parts[t].gradients = rows.gradients.data();
    parts[t].repeats = false;
    if (!plan_->server_pooling) parts[t].segments = rows.split ? rows.pulled_ends : group.segment_ends;
    if (plan_->server_pooling) {
      parts[t].pooling = plan_->mean ? ps::v1::MEAN : ps::v1::SUM;
      parts[t].offsets = group.offsets;
    }
    if (t < versions_.size()) parts[t].pulled_versions = versions_[t];
    if (table.counts_occurrences && !plan_->server_pooling) {
      CountOccurrences(t);
      parts[t].occurrences = rows.occurrences;
    }
  }
  return parts;
}

void Lookup::CountOccurrences(size_t t) {
  Rows& rows = rows_[t];
  rows.occurrences.assign(PulledIds(rows).size(), 0);
  for (const uint32_t index : rows.split ? rows.index : groups_[rows.group].index) {
    if (index < kReplicated) ++rows.occurrences[index];
  }
}

void Lookup::ScatterBags(size_t t) {
  const LookupTable& table = plan_->tables[t];
  Rows& rows = rows_[t];
  const Group& group = groups_[rows.group];
  const size_t dim = table.dim, stride = plan_->num_features * dim, per_example = group.features.size();
  const float* const d_out = table.wide ? d_wide_.data() : d_embeddings_.data();
  rows.gradients.resize(rows.values.size());
  for (size_t b = 0; b < batch_->size; ++b) {
    for (size_t k = 0; k < per_example; ++k) {
      std::memcpy(rows.gradients.data() + (b * per_example + k) * dim,
                  d_out + b * stride + group.features[k] * dim, dim * sizeof(float));
    }
  }
}

void Lookup::ScatterTable(size_t t) {
  const LookupTable& table = plan_->tables[t];
  Rows& rows = rows_[t];
  const Group& group = groups_[rows.group];
  const size_t dim = table.dim, stride = plan_->num_features * dim;
  const float* const d_out = table.wide ? d_wide_.data() : d_embeddings_.data();
  rows.gradients.assign(rows.values.size(), 0.0f);
  ps::ReplicatedRows* const replicas = rows.split ? replicas_->table(t) : nullptr;
  const Places<float> gradients = {.pulled = rows.gradients.data(),
                                   .replicated = rows.split ? replicas->gradients() : nullptr};
  const Places<const float> values = {.pulled = rows.values.data(),
                                      .replicated = rows.split ? replicas->weights(0) : nullptr};
  for (size_t k = 0; k < group.features.size(); ++k) {
    const int f = group.features[k];
    const SparseColumn& column = batch_->sparse[f];
    const uint32_t* index = IndexOf(rows, k);
    const float* from = d_out + f * dim;
    const bool squares = plan_->square_sums && !table.wide;
    if (IsPlain(column) && !squares) {
      AddRows(from, stride, dim, index, batch_->size, gradients);
      continue;
    }
    for (size_t b = 0; b < batch_->size; ++b) {
      const float* __restrict d_sum = from + b * stride;
      const float* __restrict d_square = squares ? d_square_sums_.data() + b * dim : nullptr;
      const auto [begin, end] = Bag(column, b);
      for (size_t i = begin; i < end; ++i) {
        const float weight = Weight(column, begin, end, i);
        float* __restrict gradient = gradients.Row(index[i], dim);
        for (size_t d = 0; d < dim; ++d) gradient[d] += weight * d_sum[d];
        if (!squares) continue;
        const float* __restrict row = values.Row(index[i], dim);
        for (size_t d = 0; d < dim; ++d) gradient[d] += 2.0f * weight * weight * row[d] * d_square[d];
      }
    }
  }
}

}  // namespace tandem::worker
