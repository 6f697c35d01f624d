// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_CACHE_READ_CACHE_H_
#define TANDEM_PS_CLIENT_CACHE_READ_CACHE_H_

// Copies of one table's rows for read-only pulls. read_cache_options.h defines what they mean.
//
// Locks: the rows are in sixteen shards by the hash of the id. A reader of a few ids locks the shard of each,
// shared; a reader of many locks all shards for a run of ids. A writer locks one shard at a time,
// exclusively, for those of its ids that are in the shard.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ps/client/cache/cache_shard.h"
#include "ps/client/cache/read_cache_options.h"
#include "ps/client/cache/read_gauge.h"
#include "ps/shard_map.h"

namespace tandem::ps {

// The read cache of one table. Thread-safe.
class ReadCache {
 public:
  // `options` must have passed ValidateReadCacheOptions with bytes > 0. `map` must outlive the cache.
  ReadCache(uint32_t dim, const ReadCacheOptions& options, const ShardMap* map);

  uint32_t dim() const { return dim_; }
  uint32_t num_servers() const { return map_->num_servers(); }

  // A moment before a pull, by which Accept judges the rows that it brings.
  struct Moment {
    int64_t ns = 0;
    uint64_t clears = 0;
  };
  Moment Now() const;

  // Writes the row of each id that has a copy to its row of `rows` ([ids x dim]). Returns the positions of
  // the other ids, ascending; their rows are unchanged.
  std::vector<uint32_t> Find(const Moment& now, absl::Span<const uint64_t> ids, float* rows);

  // Adds rows that a pull has brought which began at `began`. The row of ids[i] is row positions[i] of
  // `rows`, or row i if `positions` is empty. Drops them if copies have been cleared since. `generations`:
  // PullSliceResult.generation of each server.
  void Accept(const Moment& began, absl::Span<const uint64_t> ids, absl::Span<const uint32_t> positions,
              const float* rows, absl::Span<const uint64_t> generations);

  // Takes PullSliceResult.generation of each server, 0 if it is not known (a follower has answered). Drops
  // the copies of servers whose generation has changed.
  void Adopt(absl::Span<const uint64_t> generations);

  // Decides which large pulls use the cache.
  ReadGauge* gauge() { return &gauge_; }

  // Drops all copies, or those of `ids`, also rows that pulls under way bring.
  void Clear();
  void Forget(absl::Span<const uint64_t> ids);

  ReadCacheStatistics Statistics() const;

 private:
  struct alignas(64) Shard {
    mutable absl::Mutex mutex;
    CacheShard rows ABSL_GUARDED_BY(mutex);
    uint64_t admitted ABSL_GUARDED_BY(mutex) = 0;
  };

  uint32_t ServerOf(uint64_t hash) const {
    return map_->OwnerOfBucket(static_cast<uint32_t>(hash >> 32) & (map_->num_buckets() - 1));
  }
  // Counts `more` uses and returns the current epoch of the counts (cache_shard.h).
  uint16_t Epoch(uint64_t more);
  // Returns whether the copy of `id` served.
  bool FindOne(const Shard& shard, uint64_t id, uint64_t hash, int64_t now_ns, uint16_t epoch, float* row,
               uint64_t* expired) const ABSL_SHARED_LOCKS_REQUIRED(shard.mutex);
  // Adds a row, or replaces its copy if that is older.
  void AcceptOne(Shard& shard, uint64_t id, uint64_t hash, int64_t began_ns, uint16_t epoch, const float* row)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mutex);
  template <typename Predicate>
  void EraseIf(const Predicate& predicate);

  const uint32_t dim_;
  const ReadCacheOptions options_;
  const int64_t time_to_live_ns_;
  const ShardMap* const map_;
  uint64_t window_ = 0;  // uses in an epoch
  std::atomic<uint64_t> uses_{0};
  std::atomic<uint64_t> clears_{0};  // raised before copies are dropped, read again under a shard's lock
  absl::Mutex generations_mutex_;
  std::vector<uint64_t> generations_ ABSL_GUARDED_BY(generations_mutex_);
  const std::unique_ptr<Shard[]> shards_;
  ReadGauge gauge_;
  std::atomic<uint64_t> lookups_{0}, hits_{0}, expired_{0}, forgotten_{0};
};

// The part of one read-only pull that a cache serves. A large pull may go around the cache (read_gauge.h).
// Used by one thread at a time, except SetGeneration.
class ReadPart {
 public:
  // Writes the rows that have copies, unless the pull goes around the cache. `ids` and `rows` ([ids x dim])
  // must stay valid until the pull ends.
  ReadPart(std::shared_ptr<ReadCache> cache, absl::Span<const uint64_t> ids, float* rows);

  // Returns the ids to request: those of this object, or of the pull if no id has a copy.
  absl::Span<const uint64_t> missing() const { return some_hit_ ? absl::MakeConstSpan(missing_) : ids_; }
  // Returns the rows of the pull to which those of missing() are to be written; empty if no id has a copy:
  // then row i is that of missing()[i].
  absl::Span<const uint32_t> positions() const {
    return some_hit_ ? absl::MakeConstSpan(positions_) : absl::Span<const uint32_t>();
  }
  bool some_hit() const { return some_hit_; }
  // Stores PullSliceResult.generation of a server's response. Each server has its own entry.
  void SetGeneration(uint32_t server, uint64_t generation) { generations_[server] = generation; }
  // Ends a pull of which some rows were requested; they are in their places. Adds them to the cache. Called
  // when all servers have responded.
  void Finish();
  // Ends a pull all of whose rows have copies.
  void FinishUnasked();

 private:
  const std::shared_ptr<ReadCache> cache_;
  const absl::Span<const uint64_t> ids_;
  float* const rows_;
  const ReadCache::Moment began_;
  const ReadGauge::Decision decision_;
  bool some_hit_ = false;
  std::vector<uint32_t> positions_;  // of missing_ among ids_
  std::vector<uint64_t> missing_;
  std::vector<uint64_t> generations_;  // [servers]
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CACHE_READ_CACHE_H_
