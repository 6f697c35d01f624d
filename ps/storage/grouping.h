#ifndef TANDEM_PS_STORAGE_GROUPING_H_
#define TANDEM_PS_STORAGE_GROUPING_H_

// The ids of one call, sorted by the locks that guard their rows, so that each is taken once.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tandem::ps {

// Not thread-safe. Reused from call to call: a steady state allocates nothing.
class Grouping {
 public:
  struct Item {
    uint64_t id;
    uint64_t hash;      // Mix64(id)
    uint32_t position;  // in the call's ids
  };
  // Items [begin, end) belong to `bucket`, in the order in which they were given.
  struct Group {
    uint32_t bucket;
    uint32_t begin;
    uint32_t end;
  };

  // ids.size() < 2^32; num_buckets is a power of two. Groups are in ascending order of bucket, none is empty.
  void Run(absl::Span<const uint64_t> ids, uint32_t num_buckets);

  absl::Span<const Item> items() const { return items_; }
  absl::Span<const Group> groups() const { return groups_; }
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
