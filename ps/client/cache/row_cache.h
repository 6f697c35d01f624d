// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_CACHE_ROW_CACHE_H_
#define TANDEM_PS_CLIENT_CACHE_ROW_CACHE_H_

// The cached rows of one table in one worker: copies with versions, and the gradients that are deferred for
// them. cache_options.h defines what they mean.
//
// Locks: the rows are in sixteen shards by the hash of the id. A reader locks all shards, shared, for a run
// of ids and reads the ids in the given order. A writer sorts the ids by shard and locks one shard at a time,
// exclusively. `generations_mutex_` is locked before the shards: shared by threads that add rows, exclusively
// by a thread that finds that a server's rows have been replaced.

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

// The cache of one table. Thread-safe.
class RowCache {
 public:
  // `options` must have passed ValidateCacheOptions with bytes > 0. `map` must outlive the cache.
  RowCache(const v1::TableConfig& table, const CacheOptions& options, const ShardMap* map);

  const CacheOptions& options() const { return options_; }
  uint32_t dim() const { return dim_; }

  // The state of an id's copy. kNone: there is none. kSpent: it has served as often as it may. kOld: it is
  // too old, and may serve only if the server confirms it. kUse: it may serve.
  enum Copy : uint8_t { kNone, kSpent, kOld, kUse };
  // Sets copies[i] to the state of the copy of ids[i]. If it is kOld or kUse, also writes the copy to row i
  // of `rows` ([ids x dim]) and the low half of its version to versions[i], and counts a served pull.
  // Otherwise sets versions[i] to 0 and leaves the row unchanged.
  void Find(absl::Span<const uint64_t> ids, float* rows, uint32_t* versions, Copy* copies);

  // Returns, for each server, the PullSliceResult.generation of the copies. Must be read before Find: rows of
  // a newer generation that arrive in between only make the server send more.
  std::vector<uint64_t> Generations() const;

  // The responses of the servers for the requested ids.
  struct Response {
    absl::Span<const uint64_t> ids;
    const uint32_t* requested = nullptr;  // [ids]: the versions in the request; 0: none
    const uint8_t* sent = nullptr;        // [ids]: whether the row was sent
    // [ids]: the index of the row in `rows`, if it was sent.
    const uint32_t* positions = nullptr;
    const float* rows = nullptr;
    // [servers]: PullSliceResult.version, .applied and .generation.
    absl::Span<const uint64_t> versions;
    absl::Span<const uint64_t> applied;
    absl::Span<const uint64_t> generations;
  };
  // Adds the received rows and renews the copies that the servers have confirmed.
  void Accept(const Response& response);

  // Merges gradients into the cache: the copies move with them. If `out` is not null, cached rows may defer
  // their gradients, and the gradients that must be sent now are appended to `out`. Each repeat of an id
  // counts as one push of its row. `pulled_versions` are per server, or empty. `occurrences` has the
  // occurrences of each id (PushPart::occurrences), or is empty.
  void Merge(absl::Span<const uint64_t> ids, const float* gradients, float learning_rate_factor,
             absl::Span<const uint64_t> pulled_versions, DeferredGradients* out,
             absl::Span<const uint32_t> occurrences = {});
  // Returns whether gradients may be deferred.
  bool defers() const { return options_.push_bound > 1; }
  // Takes all deferred gradients. Every gradient merged before the call is then in `out`, or was in that of
  // an earlier call. `pulled` becomes the newest pulled_versions of Merge.
  void TakeDeferred(DeferredGradients* out, std::vector<uint64_t>* pulled);
  // Returns, per server, the oldest version of the gradients in full width. `near` are versions from about
  // the same time, from which the high halves are derived. Empty if `near` is empty.
  std::vector<uint64_t> Oldest(const DeferredGradients& gradients, absl::Span<const uint64_t> near) const;
  // Drops copies and deferred gradients.
  void Clear();
  // Drops the copies of `ids`. Their deferred gradients are sent with the next push.
  void Forget(absl::Span<const uint64_t> ids);

  // Returns the server of an id with this hash.
  uint32_t ServerOf(uint64_t hash) const {
    return map_->OwnerOfBucket(static_cast<uint32_t>(hash >> 32) & (map_->num_buckets() - 1));
  }

  // Adds the counts of one pull to the statistics.
  void CountPull(uint64_t locally_served, uint64_t unchanged, uint64_t refreshed, uint64_t missed,
                 uint64_t request_bytes, uint64_t response_bytes, uint64_t age_sum, uint64_t age_max);
  CacheStatistics Statistics() const;

 private:
  struct alignas(64) Shard {
    mutable absl::Mutex mutex;
    CacheShard rows ABSL_GUARDED_BY(mutex);
    DeferredGradients to_send ABSL_GUARDED_BY(mutex);  // of evicted rows, for the next push
    uint64_t admitted ABSL_GUARDED_BY(mutex) = 0;
  };
  // Ids sorted by shard.
  struct Order {
    std::vector<uint64_t> hashes;  // [ids]
    // Indices of the selected ids, shard by shard, ascending.
    std::vector<uint32_t> positions;
    uint32_t begin[kCacheShards + 1];
  };

  // Counts `more` uses and returns the current epoch.
  uint16_t Epoch(uint64_t more);
  // Returns the ids for which `wanted(index, hash)` returns true.
  template <typename Wanted>
  Order OrderByShard(absl::Span<const uint64_t> ids, const Wanted& wanted) const;
  // Returns whether a response changes the copy of an id.
  bool ChangesCopy(const Response& response, size_t at, uint64_t hash) const;
  // Stores the servers' generations and update counts. Drops the copies of replaced generations.
  void Adopt(const Response& response);
  void AcceptOne(Shard& shard, const Response& response, uint32_t at, uint64_t hash, uint16_t epoch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mutex);

  const uint32_t dim_;
  const CacheOptions options_;
  const ShardMap* const map_;
  uint64_t window_;  // uses in an epoch
  std::atomic<uint64_t> uses_{0};

  mutable absl::Mutex generations_mutex_;
  std::vector<uint64_t> generations_ ABSL_GUARDED_BY(generations_mutex_);
  // [servers]: the low half of the largest reported number of updates. Not the version: a slow update delays
  // the version while others overtake it.
  const std::unique_ptr<std::atomic<uint32_t>[]> newest_;
  const std::unique_ptr<Shard[]> shards_;
  absl::Mutex pulled_mutex_;
  std::vector<uint64_t> pulled_ ABSL_GUARDED_BY(pulled_mutex_);

  std::atomic<uint64_t> locally_served_{0}, unchanged_{0}, refreshed_{0}, missed_{0}, forgotten_{0};
  std::atomic<uint64_t> request_bytes_{0}, response_bytes_{0}, age_sum_{0}, age_max_{0};
  std::atomic<uint64_t> held_gradients_{0}, held_rows_{0};
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CACHE_ROW_CACHE_H_
