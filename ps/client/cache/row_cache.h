#ifndef TANDEM_PS_CLIENT_CACHE_ROW_CACHE_H_
#define TANDEM_PS_CLIENT_CACHE_ROW_CACHE_H_

// One table's rows at one worker: copies with versions, and the gradients that are held back for them. What
// is promised of them is told in cache_options.h.
//
// Locks. Sixteen shards by the ids' hash. Reading takes all of them, shared, for a run of ids, and then takes
// the ids in the order given; writing sorts by shard and takes one alone at a time. `generations_mutex_` is
// taken first: shared by whoever brings rows in, alone by whoever finds that a server has new rows
// altogether.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ps/client/cache/cache_options.h"
#include "ps/client/cache/cache_shard.h"
#include "ps/shard_map.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

// Thread-safe.
class RowCache {
 public:
  // `options` have passed ValidateCacheOptions and have bytes > 0. `map` outlives the cache.
  RowCache(const v1::TableConfig& table, const CacheOptions& options, const ShardMap* map);

  const CacheOptions& options() const { return options_; }
  uint32_t dim() const { return dim_; }

  // What a pull knows of an id. kSpent: a copy that has served as often as it may. kOld: one whose age says
  // that its row may have been updated too often since, and which serves if it was not.
  enum Copy : uint8_t { kNone, kSpent, kOld, kUse };
  // rows[i * dim, (i+1) * dim) = the copy of ids[i]'s row, with its version (low half) in versions[i]: of
  // copies that are kOld or kUse, which thereby serve once more. The others' rows are left alone, their
  // versions 0.
  void Find(absl::Span<const uint64_t> ids, float* rows, uint32_t* versions, Copy* copies);

  // Of each server, what PullSliceResult.generation the copies are of. To be read before Find: rows of a
  // newer generation that come in between only make the server send more.
  std::vector<uint64_t> Generations() const;

  // What the servers answered about ids that were asked for.
  struct Response {
    absl::Span<const uint64_t> ids;
    const uint32_t* asked = nullptr;      // [ids]: the versions that were said, 0: none
    const uint8_t* sent = nullptr;        // [ids]: whether the row came
    const uint32_t* positions = nullptr;  // [ids]: where in `rows` it is then, in rows
    const float* rows = nullptr;
    absl::Span<const uint64_t> versions;  // of the servers: PullSliceResult.version, .applied, .generation
    absl::Span<const uint64_t> applied;
    absl::Span<const uint64_t> generations;
  };
  // Takes over the rows and confirms the copies.
  void Accept(const Response& response);

  // Gradients on their way to the servers, which copies follow; with `out`, those that are to go now are
  // added to it and the others held back. Repeats of an id count one by one. pulled_versions: per
  // server, or empty.
  void Merge(absl::Span<const uint64_t> ids, const float* gradients, float learning_rate_factor,
             absl::Span<const uint64_t> pulled_versions, DeferredGradients* out);
  // Whether gradients may be held back.
  bool holds() const { return options_.push_bound > 1; }
  // All that are held back. What was absorbed before the call is in `out` or was in an earlier one's.
  // `pulled`: newest pulled_versions of Absorb.
  void TakeHeld(DeferredGradients* out, std::vector<uint64_t>* pulled);
  // Per server, the oldest version among the gradients', whole, given versions soon before or after them;
  // empty when those are.
  std::vector<uint64_t> Oldest(const DeferredGradients& gradients, absl::Span<const uint64_t> near) const;
  // Forgets copies and held-back gradients.
  void Clear();

  // The owner of an id, by its hash.
  uint32_t ServerOf(uint64_t hash) const {
    return map_->OwnerOfBucket(static_cast<uint32_t>(hash >> 32) & (map_->num_buckets() - 1));
  }

  // Counted by who puts the pulls together.
  void CountPull(uint64_t locally_served, uint64_t unchanged, uint64_t refreshed, uint64_t missed,
                 uint64_t request_bytes, uint64_t response_bytes, uint64_t age_sum, uint64_t age_max);
  CacheStatistics Statistics() const;

 private:
  struct alignas(64) Shard {
    mutable absl::Mutex mutex;
    CacheShard rows ABSL_GUARDED_BY(mutex);
    DeferredGradients left ABSL_GUARDED_BY(mutex);  // of rows that are gone, to go with the next push
    uint64_t admitted ABSL_GUARDED_BY(mutex) = 0;
  };
  // Ids by shard.
  struct Order {
    std::vector<uint64_t> hashes;     // [ids]
    std::vector<uint32_t> positions;  // of those wanted, shard by shard, ascending
    uint32_t begin[kCacheShards + 1];
  };

  uint16_t Epoch(uint64_t more);
  // Those ids for which `wanted(position, hash)`.
  template <typename Wanted>
  Order OrderByShard(absl::Span<const uint64_t> ids, const Wanted& wanted) const;
  // Whether an answer says anything new about an id.
  bool Tells(const Response& response, size_t at, uint64_t hash) const;
  // Takes over a server's new generation: copies of the old one go.
  void Adopt(const Response& response);
  void AcceptOne(Shard& shard, const Response& response, uint32_t at, uint64_t hash, uint16_t epoch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mutex);

  const uint32_t dim_;
  const CacheOptions options_;
  const ShardMap* const map_;
  uint64_t window_;  // uses after which an epoch ends
  std::atomic<uint64_t> uses_{0};

  mutable absl::Mutex generations_mutex_;
  std::vector<uint64_t> generations_ ABSL_GUARDED_BY(generations_mutex_);
  // Low half of how many updates each server has made, as told. Not of its version: an update that takes long
  // holds that up, while others overtake it.
  const std::unique_ptr<std::atomic<uint32_t>[]> newest_;
  const std::unique_ptr<Shard[]> shards_;
  absl::Mutex pulled_mutex_;
  std::vector<uint64_t> pulled_ ABSL_GUARDED_BY(pulled_mutex_);

  std::atomic<uint64_t> unasked_{0}, unchanged_{0}, refreshed_{0}, missed_{0}, forgotten_{0};
  std::atomic<uint64_t> request_bytes_{0}, response_bytes_{0}, age_sum_{0}, age_max_{0};
  std::atomic<uint64_t> held_gradients_{0}, held_rows_{0};
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CACHE_ROW_CACHE_H_
