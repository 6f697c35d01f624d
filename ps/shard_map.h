#ifndef TANDEM_PS_SHARD_MAP_H_
#define TANDEM_PS_SHARD_MAP_H_

// Which server owns which ids. An id belongs to a bucket by hash, a bucket to a server by the map. There are
// many more buckets than servers and their number never changes, so that load moves by moving whole buckets.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/random.h"

namespace tandem::ps {

inline constexpr uint32_t kDefaultBuckets = 256;

// The bucket of an id: the same on every machine and for every table. `num_buckets` is a power of two. Takes
// the hash's high bits; tables probe with its low bits, so the two are independent.
inline uint32_t BucketOf(uint64_t id, uint32_t num_buckets) {
  return static_cast<uint32_t>((Mix64(id) >> 32) & (num_buckets - 1));
}

// Immutable; copyable; thread-safe.
class ShardMap {
 public:
  // Buckets dealt out evenly, in contiguous runs. num_servers >= 1; num_buckets a power of two >=
  // num_servers.
  static ShardMap Even(uint32_t num_servers, uint32_t num_buckets = kDefaultBuckets) {
    std::vector<uint32_t> owner(num_buckets);
    for (uint32_t b = 0; b < num_buckets; ++b) {
      owner[b] = static_cast<uint32_t>(static_cast<uint64_t>(b) * num_servers / num_buckets);
    }
    return ShardMap(std::move(owner), num_servers);
  }
  // `owner[b]` < num_servers is the server of bucket b; owner.size() is a power of two.
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
