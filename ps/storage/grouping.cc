// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/grouping.h"

#include <algorithm>
#include <limits>

#include "base/random.h"
#include "base/status.h"
#include "ps/shard_map.h"

namespace tandem::ps {
namespace {

// Returns BucketOf(id, num_buckets) for an id whose hash is known.
uint32_t BucketOfHash(uint64_t hash, uint32_t num_buckets) {
  return static_cast<uint32_t>(hash >> 32) & (num_buckets - 1);
}

}  // namespace

void Grouping::Run(absl::Span<const uint64_t> ids, uint32_t num_buckets) {
  TANDEM_CHECK(ids.size() < std::numeric_limits<uint32_t>::max());
  items_.resize(ids.size());
  groups_.clear();
  // Counting passes over every bucket, which would be most of the work for a few ids.
  if (ids.size() * 8 < num_buckets) {
    SortByComparing(ids, num_buckets);
  } else {
    SortByCounting(ids, num_buckets);
  }
}

void Grouping::SortByCounting(absl::Span<const uint64_t> ids, uint32_t num_buckets) {
  starts_.assign(num_buckets, 0);
  hashes_.resize(ids.size());
  uint64_t* const hashes = hashes_.data();
  uint32_t* const starts = starts_.data();
  for (size_t i = 0; i < ids.size(); ++i) {
    hashes[i] = Mix64(ids[i]);
    ++starts[BucketOfHash(hashes[i], num_buckets)];
  }
  uint32_t begin = 0;
  for (uint32_t b = 0; b < num_buckets; ++b) {
    const uint32_t count = starts_[b];
    starts_[b] = begin;
    if (count > 0) groups_.push_back({b, begin, begin + count});
    begin += count;
  }
  Item* const items = items_.data();
  for (uint32_t i = 0; i < ids.size(); ++i) {
    items[starts[BucketOfHash(hashes[i], num_buckets)]++] = Item{ids[i], hashes[i], i};
  }
}

void Grouping::SortByComparing(absl::Span<const uint64_t> ids, uint32_t num_buckets) {
  for (uint32_t i = 0; i < ids.size(); ++i) items_[i] = Item{ids[i], Mix64(ids[i]), i};
  std::sort(items_.begin(), items_.end(), [num_buckets](const Item& a, const Item& b) {
    const uint32_t bucket_a = BucketOf(a.id, num_buckets), bucket_b = BucketOf(b.id, num_buckets);
    return bucket_a != bucket_b ? bucket_a < bucket_b : a.position < b.position;
  });
  for (uint32_t i = 0; i < items_.size(); ++i) {
    const uint32_t bucket = BucketOf(items_[i].id, num_buckets);
    if (groups_.empty() || groups_.back().bucket != bucket) groups_.push_back({bucket, i, i});
    groups_.back().end = i + 1;
  }
}

size_t Grouping::bytes() const {
  return items_.capacity() * sizeof(Item) + groups_.capacity() * sizeof(Group) +
         starts_.capacity() * sizeof(uint32_t) + hashes_.capacity() * sizeof(uint64_t);
}

}  // namespace tandem::ps
