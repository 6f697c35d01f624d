// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/log_tail.h"

#include <optional>
#include <utility>

#include "base/status.h"
#include "ps/log/record.h"

namespace tandem::ps {

void LogTail::Restart(uint64_t last) {
  pieces_.clear();
  bytes_ = 0;
  last_ = last;
  first_ = last + 1;
}

void LogTail::Add(uint64_t first, uint64_t last, Slice records) {
  if (first != last_ + 1) Restart(first - 1);
  bytes_ += records.size();
  last_ = last;
  pieces_.push_back({first, last, std::move(records)});
  while (bytes_ > max_bytes_) {
    bytes_ -= pieces_.front().records.size();
    first_ = pieces_.front().last + 1;
    pieces_.pop_front();
  }
}

std::vector<Slice> LogTail::Between(uint64_t from, uint64_t to) const {
  TANDEM_CHECK(Reaches(from));
  std::vector<Slice> slices;
  for (const Piece& piece : pieces_) {
    if (piece.last <= from || piece.first > to) continue;
    size_t offset = 0;
    for (uint64_t position = piece.first; position <= from; ++position) {
      const std::optional<Record> record = ParseRecord(piece.records.view(), offset);
      TANDEM_CHECK(record.has_value());
      offset += record->bytes;
    }
    slices.push_back(piece.records.Sub(offset, piece.records.size() - offset));
  }
  return slices;
}

}  // namespace tandem::ps
