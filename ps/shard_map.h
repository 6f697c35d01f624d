// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SHARD_MAP_H_
#define TANDEM_PS_SHARD_MAP_H_

// ShardMap assigns ids to servers. The hash of an id gives its bucket, and the map gives the bucket's server.
// There are many more buckets than servers, and their number never changes, so that load can be moved between
// servers by moving whole buckets.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/random.h"

namespace tandem::ps {

inline constexpr uint32_t kDefaultBuckets = 256;

// Returns the bucket of an id, which is the same on every machine and for every table. Requires a
// `num_buckets` that is a power of two. The bucket is taken from the hash's high half; tables probe with its
// low half, so the two are independent.
inline uint32_t BucketOf(uint64_t id, uint32_t num_buckets) {
  return static_cast<uint32_t>((Mix64(id) >> 32) & (num_buckets - 1));
}

// Immutable; copyable; thread-safe.
class ShardMap {
 public:
  // Returns a map that gives every server a contiguous run of buckets, all of about the same size. Requires
  // num_servers >= 1 and a power of two num_buckets >= num_servers.
  static ShardMap Even(uint32_t num_servers, uint32_t num_buckets = kDefaultBuckets) {
    std::vector<uint32_t> owner(num_buckets);
    for (uint32_t b = 0; b < num_buckets; ++b) {
      owner[b] = static_cast<uint32_t>(static_cast<uint64_t>(b) * num_servers / num_buckets);
    }
    return ShardMap(std::move(owner), num_servers);
  }
  // Makes a map in which server owner[b] owns bucket b. Requires owner[b] < num_servers and an owner.size()
  // that is a power of two.
  ShardMap(std::vector<uint32_t> owner, uint32_t num_servers)
      : owner_(std::move(owner)), num_servers_(num_servers) {}

  uint32_t num_servers() const { return num_servers_; }
  uint32_t num_buckets() const { return static_cast<uint32_t>(owner_.size()); }
  uint32_t OwnerOfBucket(uint32_t bucket) const { return owner_[bucket]; }
  uint32_t OwnerOf(uint64_t id) const { return owner_[BucketOf(id, num_buckets())]; }
  absl::Span<const uint32_t> owners() const { return owner_; }
  bool operator==(const ShardMap& other) const = default;

 private:
  std::vector<uint32_t> owner_;
  uint32_t num_servers_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SHARD_MAP_H_
