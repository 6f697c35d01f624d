// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_STORAGE_FEW_BUCKETS_H_
#define TANDEM_TESTS_PS_STORAGE_FEW_BUCKETS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "ps/storage/lookup.h"
#include "ps/storage/rows/row_store.h"

namespace tandem::ps {

// The rows of a small table, divided into buckets, without locks.
class FewBuckets {
 public:
  FewBuckets(const RowLayout& layout, uint32_t buckets)  // a power of two
      : layout_(layout), pool_(&layout_), heads_(buckets) {
    stores_.reserve(buckets);
    for (RowIndex::Head& head : heads_) stores_.emplace_back(&layout_, &pool_, &arena_, &head);
  }

  const RowLayout& layout() const { return layout_; }
  const RowPool& pool() const { return pool_; }
  Indexes indexes() const { return {heads_.data(), static_cast<uint32_t>(heads_.size()) - 1}; }
  RowStore& StoreOf(uint64_t id) { return stores_[(Mix64(id) >> 32) % stores_.size()]; }
  char* Insert(uint64_t id, uint32_t version) { return StoreOf(id).Insert(id, Mix64(id), version); }

 private:
  const RowLayout layout_;
  Arena arena_;
  RowPool pool_;
  std::vector<RowIndex::Head> heads_;
  std::vector<RowStore> stores_;
};

}  // namespace tandem::ps

#endif  // TANDEM_TESTS_PS_STORAGE_FEW_BUCKETS_H_
