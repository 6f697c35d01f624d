// SPDX-License-Identifier: Apache-2.0
#include "ps/client/error_feedback.h"

#include <algorithm>
#include <cmath>

#include "absl/numeric/bits.h"
#include "base/random.h"
#include "ps/wire/value_codec.h"

namespace tandem::ps {
namespace {

// The number of rows that are encoded at a time: these rows and their decoded values stay in the nearest
// caches.
constexpr size_t kBlock = 32;

}  // namespace

ErrorFeedback::ErrorFeedback(size_t dim, size_t byte_budget)
    : dim_(dim), byte_budget_(byte_budget), sums_(kBlock * dim), decoded_(kBlock * dim) {}

void ErrorFeedback::Encode(v1::ValueFormat format, absl::Span<const uint64_t> ids, const float* gradients,
                           const uint32_t* positions, char* out) {
  const size_t row_bytes = RowBytes(format, dim_);
  absl::MutexLock lock(&mutex_);
  for (size_t first = 0; first < ids.size(); first += kBlock, out += kBlock * row_bytes) {
    // The prefetch of the next block's cells overlaps with the encoding of this one.
    for (size_t i = first + kBlock; !cells_.empty() && i < std::min(first + 2 * kBlock, ids.size()); ++i) {
      __builtin_prefetch(&cells_[Home(ids[i])]);
    }
    EncodeBlock(format, ids.subspan(first, kBlock),
                positions == nullptr ? gradients + first * dim_ : gradients,
                positions == nullptr ? nullptr : positions + first, out);
  }
}

void ErrorFeedback::EncodeBlock(v1::ValueFormat format, absl::Span<const uint64_t> ids,
                                const float* gradients, const uint32_t* positions, char* out) {
  uint32_t rows[kBlock];
  for (size_t i = 0; i < ids.size(); ++i) {
    rows[i] = cells_.empty() ? kNone : Find(ids[i]);
    if (rows[i] != kNone) __builtin_prefetch(Residual(rows[i]));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const float* const gradient = gradients + (positions == nullptr ? i : positions[i]) * dim_;
    float* const sum = sums_.data() + i * dim_;
    if (rows[i] == kNone) {
      std::copy_n(gradient, dim_, sum);
    } else {
      const float* const residual = Residual(rows[i]);
      for (size_t d = 0; d < dim_; ++d) sum[d] = gradient[d] + residual[d];
    }
  }
  EncodeRows(format, sums_.data(), nullptr, ids.size(), dim_, out);
  DecodeRows(format, out, nullptr, ids.size(), dim_, decoded_.data());
  const uint64_t dropped_before = dropped_;
  for (size_t i = 0; i < ids.size(); ++i) {
    float* const lost = sums_.data() + i * dim_;
    const float* const decoded = decoded_.data() + i * dim_;
    for (size_t d = 0; d < dim_; ++d) lost[d] -= decoded[d];
    const float largest = LargestMagnitude(absl::MakeConstSpan(lost, dim_));
    if (!std::isfinite(largest)) continue;
    // An earlier id of this block may have taken over the row of this id.
    uint32_t row = dropped_ == dropped_before ? rows[i] : Find(ids[i]);
    if (row != kNone) {
      pushed_[row] = 1;
    } else {
      // A new row has no second chance yet: ids that occur once are replaced before those that occur again.
      if (largest == 0) continue;
      row = Insert(ids[i]);
      if (row == kNone) continue;
    }
    std::copy_n(lost, dim_, Residual(row));
  }
}

size_t ErrorFeedback::Home(uint64_t id) const { return Mix64(id) & (cells_.size() - 1); }

uint32_t ErrorFeedback::Find(uint64_t id) const {
  for (size_t at = Home(id);; at = (at + 1) & (cells_.size() - 1)) {
    const Cell& cell = cells_[at];
    if (cell.row == kNone || cell.id == id) return cell.row;
  }
}

uint32_t ErrorFeedback::Insert(uint64_t id) {
  if (Grow()) {
    const auto row = static_cast<uint32_t>(row_ids_.size());
    row_ids_.push_back(id);
    pushed_.push_back(0);
    Place(id, row);
    return row;
  }
  ++dropped_;
  if (row_ids_.empty()) return kNone;
  // The hand makes at most two rounds: in the first one every row may still have its second chance.
  while (pushed_[hand_] != 0) {
    pushed_[hand_] = 0;
    hand_ = (hand_ + 1) % row_ids_.size();
  }
  const auto row = static_cast<uint32_t>(hand_);
  hand_ = (hand_ + 1) % row_ids_.size();
  Erase(row_ids_[row]);
  row_ids_[row] = id;
  Place(id, row);
  return row;
}

bool ErrorFeedback::Grow() {
  if (row_ids_.size() < chunks_.size() * kChunkRows) return true;
  const size_t rows = (chunks_.size() + 1) * kChunkRows;
  const size_t cells = std::max(cells_.size(), absl::bit_ceil(2 * rows));
  if (BytesOf(rows, cells) > byte_budget_) return false;
  chunks_.push_back(std::make_unique<float[]>(kChunkRows * dim_));
  if (cells > cells_.size()) {
    cells_.assign(cells, Cell{0, kNone});
    for (uint32_t row = 0; row < row_ids_.size(); ++row) Place(row_ids_[row], row);
  }
  return true;
}

void ErrorFeedback::Place(uint64_t id, uint32_t row) {
  size_t at = Home(id);
  while (cells_[at].row != kNone) at = (at + 1) & (cells_.size() - 1);
  cells_[at] = Cell{id, row};
}

void ErrorFeedback::Erase(uint64_t id) {
  const size_t mask = cells_.size() - 1;
  size_t hole = Home(id);
  while (cells_[hole].id != id || cells_[hole].row == kNone) hole = (hole + 1) & mask;
  // Cells after the hole move up unless that would put them before their home cell.
  for (size_t at = (hole + 1) & mask; cells_[at].row != kNone; at = (at + 1) & mask) {
    if (((at - Home(cells_[at].id)) & mask) >= ((at - hole) & mask)) {
      cells_[hole] = cells_[at];
      hole = at;
    }
  }
  cells_[hole].row = kNone;
}

size_t ErrorFeedback::BytesOf(size_t rows, size_t cells) const {
  return rows * (dim_ * sizeof(float) + sizeof(uint64_t) + 1) + cells * sizeof(Cell);
}

ErrorFeedbackStatistics ErrorFeedback::statistics() const {
  absl::MutexLock lock(&mutex_);
  return {.rows = row_ids_.size(),
          .bytes = BytesOf(chunks_.size() * kChunkRows, cells_.size()),
          .dropped_rows = dropped_};
}

}  // namespace tandem::ps
