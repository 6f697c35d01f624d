// SPDX-License-Identifier: Apache-2.0
#include "worker/data/split_index.h"

#include <utility>

namespace tandem::worker {

void SplitIndex::Add(Split split, uint64_t position) {
  Lines& lines = splits_[static_cast<size_t>(split)];
  uint64_t rest = position - std::exchange(lines.last, position);
  for (; rest >= 128; rest /= 128) lines.differences.push_back(static_cast<uint8_t>(rest | 128));
  lines.differences.push_back(static_cast<uint8_t>(rest));
}

uint64_t SplitIndex::bytes() const {
  uint64_t bytes = 0;
  for (const Lines& lines : splits_) bytes += lines.differences.size();
  return bytes;
}

SplitIndex::Cursor::Cursor(std::shared_ptr<const SplitIndex> index, Split split) : index_(std::move(index)) {
  const std::vector<uint8_t>& differences = index_->splits_[static_cast<size_t>(split)].differences;
  at_ = differences.data();
  end_ = at_ + differences.size();
}

bool SplitIndex::Cursor::Next(uint64_t* position) {
  if (at_ == end_) return false;
  uint64_t difference = 0;
  for (int shift = 0;; shift += 7) {
    const uint8_t byte = *at_++;
    difference |= uint64_t{byte & 127u} << shift;
    if (byte < 128) break;
  }
  position_ += difference;
  *position = position_;
  return true;
}

}  // namespace tandem::worker
