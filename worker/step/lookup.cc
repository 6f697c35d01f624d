// SPDX-License-Identifier: Apache-2.0
#include "worker/step/lookup.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem::worker {
namespace {

// Copies and adds rows; common dimensions are compile-time constants.
template <int kDim>
void CopyRows(const float* rows, const uint32_t* index, size_t n, size_t out_stride, float* out) {
  for (size_t b = 0; b < n; ++b) {
    std::memcpy(out + b * out_stride, rows + static_cast<size_t>(index[b]) * kDim, kDim * sizeof(float));
  }
}
void CopyRows(const float* rows, int dim, const uint32_t* index, size_t n, size_t out_stride, float* out) {
  switch (dim) {
    case 1:
      return CopyRows<1>(rows, index, n, out_stride, out);
    case 8:
      return CopyRows<8>(rows, index, n, out_stride, out);
    case 16:
      return CopyRows<16>(rows, index, n, out_stride, out);
    case 32:
      return CopyRows<32>(rows, index, n, out_stride, out);
    default:
      for (size_t b = 0; b < n; ++b) {
        std::memcpy(out + b * out_stride, rows + static_cast<size_t>(index[b]) * dim, dim * sizeof(float));
      }
  }
}

template <int kDim>
void AddRows(const float* in, size_t in_stride, const uint32_t* index, size_t n, float* rows) {
  for (size_t b = 0; b < n; ++b) {
    float* __restrict row = rows + static_cast<size_t>(index[b]) * kDim;
    const float* __restrict from = in + b * in_stride;
    for (int d = 0; d < kDim; ++d) row[d] += from[d];
  }
}
void AddRows(const float* in, size_t in_stride, int dim, const uint32_t* index, size_t n, float* rows) {
  switch (dim) {
    case 1:
      return AddRows<1>(in, in_stride, index, n, rows);
    case 8:
      return AddRows<8>(in, in_stride, index, n, rows);
    case 16:
      return AddRows<16>(in, in_stride, index, n, rows);
    case 32:
      return AddRows<32>(in, in_stride, index, n, rows);
    default:
      for (size_t b = 0; b < n; ++b) {
        float* __restrict row = rows + static_cast<size_t>(index[b]) * dim;
        const float* __restrict from = in + b * in_stride;
        for (int d = 0; d < dim; ++d) row[d] += from[d];
      }
  }
}

bool IsPlain(const SparseColumn& column) { return column.offsets.empty() && column.weights.empty(); }
// Returns the range [begin, end) of the ids of example b.
std::pair<size_t, size_t> Bag(const SparseColumn& column, size_t b) {
  if (column.offsets.empty()) return {b, b + 1};
  return {column.offsets[b], column.offsets[b + 1]};
}

}  // namespace

Lookup::Lookup(const LookupPlan* plan) : plan_(plan), rows_(plan->tables.size()) {
  for (size_t t = 0; t < plan->tables.size(); ++t) {
    const LookupTable& table = plan->tables[t];
    (table.wide ? has_wide_ : has_embeddings_) = true;
    auto same = std::find_if(groups_.begin(), groups_.end(),
                             [&](const Group& group) { return group.features == table.features; });
    if (same == groups_.end()) same = groups_.insert(groups_.end(), Group{.features = table.features});
    rows_[t].group = static_cast<int>(same - groups_.begin());
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
    const size_t rows = plan_->server_pooling ? group.offsets.size() - 1 : group.unique.size();
    rows_[t].values.resize(rows * plan_->tables[t].dim);
    num_ids_ += plan_->server_pooling ? group.unique.size() : group.index.size();
    num_unique_ += group.unique.size();
  }
  return absl::OkStatus();
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
  std::vector<bool> done(group->features.size(), false);
  for (size_t i = 0; i < group->features.size(); ++i) {
    if (done[i]) continue;
    std::vector<size_t> set = {i};
    for (const std::vector<int>& shared : plan_->shared_features) {
      if (std::find(shared.begin(), shared.end(), group->features[i]) == shared.end()) continue;
      for (size_t j = i + 1; j < group->features.size(); ++j) {
        if (std::find(shared.begin(), shared.end(), group->features[j]) != shared.end()) set.push_back(j);
      }
    }
    absl::Span<const uint64_t> ids = batch_->sparse[group->features[i]].ids;
    if (set.size() > 1) {
      ids_.clear();
      for (const size_t j : set) {
        const std::vector<uint64_t>& more = batch_->sparse[group->features[j]].ids;
        ids_.insert(ids_.end(), more.begin(), more.end());
      }
      ids = ids_;
    }
    deduper_.Run(ids, &set_unique_, &set_index_);
    const uint32_t base = static_cast<uint32_t>(group->unique.size());
    group->unique.insert(group->unique.end(), set_unique_.begin(), set_unique_.end());
    size_t from = 0;
    for (const size_t j : set) {
      done[j] = true;
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
    parts[t].ids = group.unique;
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
    const LookupTable& table = plan_->tables[t];
    GatherTable(table, rows_[t], table.wide ? wide_.data() : embeddings_.data(), table.wide ? 1 : plan_->dim);
  }
}

void Lookup::GatherTable(const LookupTable& table, const Rows& rows, float* out, int dim) {
  const Group& group = groups_[rows.group];
  const size_t stride = static_cast<size_t>(plan_->num_features) * dim;
  if (plan_->server_pooling) {
    const size_t per_example = group.features.size();
    for (size_t b = 0; b < batch_->size; ++b) {
      for (size_t k = 0; k < per_example; ++k) {
        std::memcpy(out + b * stride + static_cast<size_t>(group.features[k]) * dim,
                    rows.values.data() + (b * per_example + k) * dim, dim * sizeof(float));
      }
    }
    return;
  }
  const float* values = rows.values.data();
  for (size_t k = 0; k < group.features.size(); ++k) {
    const int f = group.features[k];
    const SparseColumn& column = batch_->sparse[f];
    const uint32_t* index = group.index.data() + group.start[k];
    float* to = out + static_cast<size_t>(f) * dim;
    if (IsPlain(column)) {
      CopyRows(values, dim, index, batch_->size, stride, to);
    } else {
      for (size_t b = 0; b < batch_->size; ++b) {
        float* __restrict sum = to + b * stride;
        std::fill_n(sum, dim, 0.0f);
        const auto [begin, end] = Bag(column, b);
        for (size_t i = begin; i < end; ++i) {
          const float weight = Weight(column, begin, end, i);
          const float* __restrict row = values + static_cast<size_t>(index[i]) * dim;
          for (int d = 0; d < dim; ++d) sum[d] += weight * row[d];
        }
      }
    }
    if (!plan_->square_sums || table.wide) continue;
    for (size_t b = 0; b < batch_->size; ++b) {
      float* __restrict sum = square_sums_.data() + b * dim;
      const auto [begin, end] = Bag(column, b);
      for (size_t i = begin; i < end; ++i) {
        const float weight = Weight(column, begin, end, i);
        const float* __restrict row = values + static_cast<size_t>(index[i]) * dim;
        for (int d = 0; d < dim; ++d) sum[d] += weight * row[d] * (weight * row[d]);
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

std::vector<ps::PushPart> Lookup::Scatter() {
  std::vector<ps::PushPart> parts(rows_.size());
  for (size_t t = 0; t < rows_.size(); ++t) {
    const LookupTable& table = plan_->tables[t];
    const Group& group = groups_[rows_[t].group];
    ScatterTable(table, &rows_[t], table.wide ? d_wide_.data() : d_embeddings_.data(),
                 table.wide ? 1 : plan_->dim);
    parts[t].table = table.name;
    parts[t].ids = group.unique;
    parts[t].gradients = rows_[t].gradients.data();
    parts[t].repeats = false;
    if (plan_->server_pooling) {
      parts[t].pooling = plan_->mean ? ps::v1::MEAN : ps::v1::SUM;
      parts[t].offsets = group.offsets;
    }
    if (t < versions_.size()) parts[t].pulled_versions = versions_[t];
  }
  return parts;
}

void Lookup::ScatterTable(const LookupTable& table, Rows* rows, const float* d_out, int dim) {
  const Group& group = groups_[rows->group];
  const size_t stride = static_cast<size_t>(plan_->num_features) * dim;
  if (plan_->server_pooling) {
    const size_t per_example = group.features.size();
    rows->gradients.resize(rows->values.size());
    for (size_t b = 0; b < batch_->size; ++b) {
      for (size_t k = 0; k < per_example; ++k) {
        std::memcpy(rows->gradients.data() + (b * per_example + k) * dim,
                    d_out + b * stride + static_cast<size_t>(group.features[k]) * dim, dim * sizeof(float));
      }
    }
    return;
  }
  rows->gradients.assign(rows->values.size(), 0.0f);
  float* gradients = rows->gradients.data();
  for (size_t k = 0; k < group.features.size(); ++k) {
    const int f = group.features[k];
    const SparseColumn& column = batch_->sparse[f];
    const uint32_t* index = group.index.data() + group.start[k];
    const float* from = d_out + static_cast<size_t>(f) * dim;
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
        float* __restrict gradient = gradients + static_cast<size_t>(index[i]) * dim;
        for (int d = 0; d < dim; ++d) gradient[d] += weight * d_sum[d];
        if (!squares) continue;
        const float* __restrict row = rows->values.data() + static_cast<size_t>(index[i]) * dim;
        for (int d = 0; d < dim; ++d) gradient[d] += 2.0f * weight * weight * row[d] * d_square[d];
      }
    }
  }
}

}  // namespace tandem::worker
