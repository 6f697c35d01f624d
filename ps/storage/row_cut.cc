// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/row_cut.h"

#include <cstring>

namespace tandem::ps {
namespace {

// Approximate memory of an entry of the map.
constexpr uint64_t kEntryBytes = 32;

}  // namespace

void RowCut::KeepOnce(Bucket* bucket, uint64_t id, uint32_t version, const char* row) {
  const auto [entry, is_new] = bucket->copies.try_emplace(id, kNoRow);
  if (!is_new) return;
  uint64_t bytes = kEntryBytes;
  if (row != nullptr) {
    // Rows are a multiple of four bytes.
    const size_t words = layout_.row_bytes / sizeof(uint32_t);
    entry->second = bucket->rows.size();
    bucket->rows.push_back(version);
    bucket->rows.resize(bucket->rows.size() + words);
    std::memcpy(bucket->rows.data() + entry->second + 1, row, layout_.row_bytes);
    bytes += (1 + words) * sizeof(uint32_t);
  }
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

bool RowCut::Find(uint32_t bucket, uint64_t id, Copy* copy) const {
  const Bucket& from = buckets_[bucket];
  const auto found = from.copies.find(id);
  if (found == from.copies.end()) return false;
  *copy = {};
  if (found->second != kNoRow) {
    const uint32_t* const at = from.rows.data() + found->second;
    *copy = {.version = *at, .row = reinterpret_cast<const char*>(at + 1)};
  }
  return true;
}

void RowCut::AppendIds(uint32_t bucket, std::vector<uint64_t>* ids) const {
  for (const auto& [id, at] : buckets_[bucket].copies) {
    if (at != kNoRow) ids->push_back(id);
  }
}

void RowCut::Close(uint32_t bucket) {
  Bucket& closing = buckets_[bucket];
  if (!closing.open) return;
  closing.open = false;
  bytes_.fetch_sub(closing.copies.size() * kEntryBytes + closing.rows.size() * sizeof(uint32_t),
                   std::memory_order_relaxed);
  closing.copies = {};
  closing.rows = {};
  open_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace tandem::ps
