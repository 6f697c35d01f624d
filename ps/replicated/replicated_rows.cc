// SPDX-License-Identifier: Apache-2.0
#include "ps/replicated/replicated_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem::ps {

absl::StatusOr<std::unique_ptr<ReplicatedRows>> ReplicatedRows::Create(const v1::TableConfig& config,
                                                                       L2Scope l2_scope) {
  if (config.optimizer().clip_global_norm() > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", config.name(),
                     "' cannot have replicated rows: its optimizer's clip_global_norm needs the norm of all "
                     "gradients of a push; leave it out, or place the table 'sharded'"));
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Optimizer> optimizer, MakeOptimizer(config.optimizer()));
  return std::unique_ptr<ReplicatedRows>(new ReplicatedRows(std::move(optimizer), config.dim(), l2_scope));
}

ReplicatedRows::ReplicatedRows(std::unique_ptr<Optimizer> optimizer, size_t dim, L2Scope l2_scope)
    : optimizer_(std::move(optimizer)),
      dim_(dim),
      state_floats_(optimizer_->state_floats(dim)),
      l2_scope_(l2_scope) {}

uint64_t ReplicatedRows::bytes_per_row() const {
  constexpr uint64_t kIndex = 32;  // an entry of a flat hash map at 7/8 load or less, and the id by slot
  return (2 * dim_ + state_floats_ + 2) * sizeof(float) + sizeof(RowUpdate) + 2 * sizeof(uint32_t) + kIndex;
}

void ReplicatedRows::AddGradient(uint32_t slot, const float* gradient) {
  float* __restrict sum = exchange_.data() + size_t{slot} * dim_;
  for (size_t d = 0; d < dim_; ++d) sum[d] += gradient[d];
  Touch(slot);
}

void ReplicatedRows::TakeTouched(std::vector<float>* packed) {
  const size_t before = packed->size();
  packed->resize(before + touched_.size() * packed_floats());
  float* to = packed->data() + before;
  for (const uint32_t slot : touched_) {
    float* const gradient = exchange_.data() + size_t{slot} * dim_;
    std::memcpy(to, &slot, sizeof(slot));
    std::memcpy(to + 1, gradient, dim_ * sizeof(float));
    std::fill_n(gradient, dim_, 0.0f);
    exchange_[ids_.size() * dim_ + slot] = 0.0f;
    to += packed_floats();
  }
  touched_.clear();
}

absl::Status ReplicatedRows::AddTouched(absl::Span<const float> packed) {
  if (packed.size() % packed_floats() != 0) {
    return absl::DataLossError("a worker sent malformed gradients of replicated rows");
  }
  for (const float* from = packed.data(); from != packed.data() + packed.size(); from += packed_floats()) {
    uint32_t slot;
    std::memcpy(&slot, from, sizeof(slot));
    if (slot >= ids_.size()) {
      return absl::DataLossError(absl::StrCat("a worker sent the gradient of replicated row ", slot,
                                              ", but there are ", ids_.size(), " rows"));
    }
    float* __restrict sum = exchange_.data() + size_t{slot} * dim_;
    for (size_t d = 0; d < dim_; ++d) sum[d] += from[1 + d];
    exchange_[ids_.size() * dim_ + slot] += 1.0f;
  }
  return absl::OkStatus();
}

absl::Status ReplicatedRows::Apply(float learning_rate_factor, uint64_t update) {
  ++steps_;
  touched_.clear();
  const size_t rows = ids_.size();
  const float* const counts = exchange_.data() + rows * dim_;
  updates_.clear();
  applied_.clear();
  bool finite = true;
  for (uint32_t slot = 0; slot < rows; ++slot) {
    if (counts[slot] == 0.0f && l2_scope_ == L2Scope::kTouched) continue;
    const float* const gradient = exchange_.data() + size_t{slot} * dim_;
    float zero = 0;  // becomes NaN with the first number that is not finite
    for (size_t d = 0; d < dim_; ++d) zero += gradient[d] * 0.0f;
    finite = finite && zero == 0.0f;
    updates_.push_back({weights_.data() + size_t{slot} * dim_, state_.data() + size_t{slot} * state_floats_,
                        gradient, 1.0f});
    applied_.push_back(slot);
  }
  if (!finite) {
    std::fill(exchange_.begin(), exchange_.end(), 0.0f);
    return absl::InvalidArgumentError(
        "a gradient of a replicated row is not finite (learning rate too high, or a defect of the model?)");
  }
  optimizer_->Update(updates_, dim_, learning_rate_factor * optimizer_->WarmUp(update));
  for (const uint32_t slot : applied_) {
    touches_[slot] += counts[slot];
    std::fill_n(exchange_.data() + size_t{slot} * dim_, dim_, 0.0f);
    exchange_[rows * dim_ + slot] = 0.0f;
  }
  return absl::OkStatus();
}

MovedRows ReplicatedRows::Read(absl::Span<const uint32_t> slots) const {
  MovedRows rows;
  rows.ids.reserve(slots.size());
  rows.weights.reserve(slots.size() * dim_);
  rows.state.reserve(slots.size() * state_floats_);
  for (const uint32_t slot : slots) {
    rows.ids.push_back(ids_[slot]);
    const auto weights = weights_.begin() + static_cast<ptrdiff_t>(size_t{slot} * dim_);
    const auto state = state_.begin() + static_cast<ptrdiff_t>(size_t{slot} * state_floats_);
    rows.weights.insert(rows.weights.end(), weights, weights + static_cast<ptrdiff_t>(dim_));
    rows.state.insert(rows.state.end(), state, state + static_cast<ptrdiff_t>(state_floats_));
  }
  return rows;
}

absl::Status ReplicatedRows::Change(absl::Span<const uint64_t> removed, const MovedRows& added) {
  if (added.weights.size() != added.ids.size() * dim_ ||
      added.state.size() != added.ids.size() * state_floats_) {
    return absl::InvalidArgumentError(absl::StrCat(
        added.ids.size(), " rows come with ", added.weights.size(), " weights and ", added.state.size(),
        " numbers of optimizer state; a row of this table has ", dim_, " and ", state_floats_));
  }
  const absl::flat_hash_set<uint64_t> gone(removed.begin(), removed.end());
  for (const uint64_t id : added.ids) {
    if (Find(id) != kAbsent && !gone.contains(id)) {
      return absl::InvalidArgumentError(absl::StrCat("id ", id, " is already replicated"));
    }
  }
  size_t kept = 0;
  for (size_t slot = 0; slot < ids_.size(); ++slot) {
    if (gone.contains(ids_[slot])) {
      slots_.erase(ids_[slot]);
      continue;
    }
    if (kept != slot) {
      ids_[kept] = ids_[slot];
      touches_[kept] = touches_[slot];
      std::memmove(weights_.data() + kept * dim_, weights_.data() + slot * dim_, dim_ * sizeof(float));
      std::memmove(state_.data() + kept * state_floats_, state_.data() + slot * state_floats_,
                   state_floats_ * sizeof(float));
      slots_[ids_[kept]] = static_cast<uint32_t>(kept);
    }
    ++kept;
  }
  ids_.resize(kept);
  weights_.resize(kept * dim_);
  state_.resize(kept * state_floats_);
  for (const uint64_t id : added.ids) {
    slots_[id] = static_cast<uint32_t>(ids_.size());
    ids_.push_back(id);
  }
  weights_.insert(weights_.end(), added.weights.begin(), added.weights.end());
  state_.insert(state_.end(), added.state.begin(), added.state.end());
  touches_.resize(kept);
  touches_.resize(ids_.size(), 0.0f);
  touched_.clear();
  exchange_.assign(ids_.size() * (dim_ + 1), 0.0f);
  return absl::OkStatus();
}

void ReplicatedRows::ForgetTouches() {
  steps_ = 0;
  std::fill(touches_.begin(), touches_.end(), 0.0f);
}

}  // namespace tandem::ps
