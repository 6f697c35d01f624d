// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_GROUPING_H_
#define TANDEM_PS_STORAGE_GROUPING_H_

// Grouping sorts the ids of one call by bucket. TableStorage passes its number of locks as the number of
// buckets: as both are powers of two, the groups are then those of the locks (buckets.h), and a call takes
// each lock once.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tandem::ps {

// The ids of one call, sorted by bucket. Not thread-safe. An object is reused from call to call, so that a
// steady state allocates nothing.
class Grouping {
 public:
  struct Item {
    uint64_t id;
    uint64_t hash;      // Mix64(id)
    uint32_t position;  // of the id in the call
  };
  // items()[begin, end) belong to `bucket`. They are in the order in which their ids were given.
  struct Group {
    uint32_t bucket;
    uint32_t begin;
    uint32_t end;
  };

  // Replaces items and groups by those of `ids`, whose buckets are BucketOf(id, num_buckets)
  // (ps/shard_map.h). Ids may repeat; each has an item of its own. Groups are in ascending order of bucket;
  // none is empty. Does not keep `ids`. Requires ids.size() < 2^32 - 1, which is checked, and a `num_buckets`
  // that is a power of two.
  void Run(absl::Span<const uint64_t> ids, uint32_t num_buckets);

  // The items and groups of the last Run, valid until the next one.
  absl::Span<const Item> items() const { return items_; }
  absl::Span<const Group> groups() const { return groups_; }
  // Returns the memory that the object holds, in bytes, without the object itself.
  size_t bytes() const;

 private:
  void SortByCounting(absl::Span<const uint64_t> ids, uint32_t num_buckets);
  void SortByComparing(absl::Span<const uint64_t> ids, uint32_t num_buckets);

  std::vector<Item> items_;
  std::vector<Group> groups_;
  std::vector<uint32_t> starts_;
  std::vector<uint64_t> hashes_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_GROUPING_H_
