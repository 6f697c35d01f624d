// SPDX-License-Identifier: Apache-2.0
#include "ps/client/cache/read_cache.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace tandem::ps {
namespace {

// The number of ids that are read per locking of all shards; fewer than kFewIds lock one shard at a time.
constexpr size_t kIdsPerLock = 512;
constexpr size_t kFewIds = 16;
constexpr size_t kPrefetchBlock = 32;  // ids that are prefetched before the first one is used
// The number of rows that are added per round over the shards, which bounds how long a shard is locked.
constexpr size_t kRowsPerRound = 4096;
constexpr size_t kInsertAhead = 4;  // ids whose insertion is prefetched
constexpr size_t kCacheLine = 64;

void PrefetchRecord(const CacheHeader* record, size_t bytes) {
  const char* const begin = reinterpret_cast<const char*>(record);
  for (size_t at = 0; at < std::min<size_t>(bytes, 1024); at += kCacheLine)
    __builtin_prefetch(begin + at, 0, 2);
}

}  // namespace

absl::Status ValidateReadCacheOptions(const v1::TableConfig& table, const ReadCacheOptions& options) {
  const auto wrong = [&](const auto&... text) {
    return absl::InvalidArgumentError(absl::StrCat("table '", table.name(), "': read cache: ", text...));
  };
  if (options.bytes == 0) return absl::OkStatus();
  if (table.kind() != v1::TableConfig::EMBEDDING) return wrong("dense tables have none");
  if (options.time_to_live <= absl::ZeroDuration()) {
    return wrong("the time to live is ", absl::FormatDuration(options.time_to_live), ", must be more than 0");
  }
  if (CacheShard::CapacityOf(options.bytes / kCacheShards, table.dim(), CacheLayout::kPlain) == 0) {
    return wrong("bytes is ", options.bytes, ", less than ", kCacheShards, " rows of dim ", table.dim(),
                 " need");
  }
  return absl::OkStatus();
}

ReadCache::ReadCache(uint32_t dim, const ReadCacheOptions& options, const ShardMap* map)
    : dim_(dim),
      options_(options),
      time_to_live_ns_(absl::ToInt64Nanoseconds(options.time_to_live)),
      map_(map),
      generations_(map->num_servers(), 0),
      shards_(new Shard[kCacheShards]) {
  uint64_t capacity = 0;
  for (uint32_t s = 0; s < kCacheShards; ++s) {
    absl::MutexLock lock(&shards_[s].mutex);
    shards_[s].rows.Init(options.bytes / kCacheShards, dim, CacheLayout::kPlain);
    capacity += shards_[s].rows.capacity();
  }
  window_ = 8 * capacity;  // TinyLFU uses samples of about ten times the capacity
}

ReadCache::Moment ReadCache::Now() const {
  return {.ns = absl::ToUnixNanos(options_.clock->Now()), .clears = clears_.load()};
}

uint16_t ReadCache::Epoch(uint64_t more) {
  return static_cast<uint16_t>((uses_.fetch_add(more, std::memory_order_relaxed) + more) / window_);
}

bool ReadCache::FindOne(const Shard& shard, uint64_t id, uint64_t hash, int64_t now_ns, uint16_t epoch,
                        float* row, uint64_t* expired) const {
  CacheHeader* const record = shard.rows.Find(id, hash);
  if (record == nullptr) return false;
  CacheShard::Use(record, epoch);
  if (now_ns - record->received_ns >= time_to_live_ns_) {
    ++*expired;
    return false;
  }
  std::copy_n(shard.rows.Row(record), dim_, row);
  return true;
}

std::vector<uint32_t> ReadCache::Find(const Moment& now, absl::Span<const uint64_t> ids,
                                      float* rows) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const uint16_t epoch = Epoch(ids.size());
  std::vector<uint32_t> missing;
  uint64_t expired = 0;
  if (ids.size() < kFewIds) {
    for (size_t i = 0; i < ids.size(); ++i) {
      const uint64_t hash = Mix64(ids[i]);
      const Shard& shard = shards_[CacheShardOf(hash)];
      absl::ReaderMutexLock lock(&shard.mutex);
      if (!FindOne(shard, ids[i], hash, now.ns, epoch, rows + i * dim_, &expired)) {
        missing.push_back(static_cast<uint32_t>(i));
      }
    }
  } else {
    const size_t record_bytes = sizeof(CacheHeader) + dim_ * sizeof(float);
    uint64_t hashes[kPrefetchBlock];
    for (size_t run = 0; run < ids.size(); run += kIdsPerLock) {
      const size_t run_end = std::min(run + kIdsPerLock, ids.size());
      for (uint32_t s = 0; s < kCacheShards; ++s) shards_[s].mutex.ReaderLock();
      for (size_t first = run; first < run_end; first += kPrefetchBlock) {
        const size_t count = std::min(kPrefetchBlock, run_end - first);
        for (size_t i = 0; i < count; ++i) {
          hashes[i] = Mix64(ids[first + i]);
          __builtin_prefetch(shards_[CacheShardOf(hashes[i])].rows.Cell(hashes[i]), 0, 2);
        }
        for (size_t i = 0; i < count; ++i) {
          const CacheHeader* const record = shards_[CacheShardOf(hashes[i])].rows.Guess(hashes[i]);
          if (record != nullptr) PrefetchRecord(record, record_bytes);
        }
        for (size_t i = 0; i < count; ++i) {
          const size_t at = first + i;
          if (!FindOne(shards_[CacheShardOf(hashes[i])], ids[at], hashes[i], now.ns, epoch, rows + at * dim_,
                       &expired)) {
            missing.push_back(static_cast<uint32_t>(at));
          }
        }
      }
      for (uint32_t s = 0; s < kCacheShards; ++s) shards_[s].mutex.ReaderUnlock();
    }
  }
  lookups_ += ids.size();
  hits_ += ids.size() - missing.size();
  expired_ += expired;
  return missing;
}

template <typename Predicate>
void ReadCache::EraseIf(const Predicate& predicate) {
  DeferredGradients none;
  for (uint32_t s = 0; s < kCacheShards; ++s) {
    absl::MutexLock lock(&shards_[s].mutex);
    forgotten_ += shards_[s].rows.EraseIf(predicate, &none);
  }
}

void ReadCache::Adopt(absl::Span<const uint64_t> generations) {
  std::vector<bool> changed(generations.size(), false);
  {
    absl::MutexLock lock(&generations_mutex_);
    if (generations == absl::MakeConstSpan(generations_)) return;
    for (size_t s = 0; s < generations.size(); ++s) {
      if (generations[s] == 0) continue;  // the answer was a follower's, which tells nothing of the server
      // 0 before the first response: there are no copies of this server's rows.
      changed[s] = generations[s] != generations_[s] && generations_[s] != 0;
      generations_[s] = generations[s];
    }
  }
  if (std::find(changed.begin(), changed.end(), true) == changed.end()) return;
  // A late response from before a restart drops the copies once more. That costs requests but nothing else.
  EraseIf([&](const CacheHeader& record) { return changed[ServerOf(Mix64(record.id))]; });
}

void ReadCache::AcceptOne(Shard& shard, uint64_t id, uint64_t hash, int64_t began_ns, uint16_t epoch,
                          const float* row) {
  CacheHeader* record = shard.rows.Find(id, hash);
  if (record == nullptr) {
    DeferredGradients none;
    record = shard.rows.Insert(id, hash, epoch, &none);
    if (record == nullptr) return;
    ++shard.admitted;
  } else if (record->received_ns > began_ns) {
    return;  // a later pull has brought the row
  }
  record->version = 1;  // 0: the record is free
  record->received_ns = began_ns;
  std::copy_n(row, dim_, shard.rows.Row(record));
}

void ReadCache::Accept(const Moment& began, absl::Span<const uint64_t> ids,
                       absl::Span<const uint32_t> positions, const float* rows,
                       absl::Span<const uint64_t> generations) {
  Adopt(generations);
  const uint16_t epoch = Epoch(0);
  std::vector<uint64_t> hashes(std::min(ids.size(), kRowsPerRound));
  std::vector<uint32_t> order(hashes.size());  // by shard
  for (size_t round = 0; round < ids.size(); round += kRowsPerRound) {
    const size_t count = std::min(kRowsPerRound, ids.size() - round);
    uint32_t end[kCacheShards + 1] = {};
    for (size_t i = 0; i < count; ++i) {
      hashes[i] = Mix64(ids[round + i]);
      ++end[CacheShardOf(hashes[i]) + 1];
    }
    for (uint32_t s = 0; s < kCacheShards; ++s) end[s + 1] += end[s];
    for (size_t i = 0; i < count; ++i) order[end[CacheShardOf(hashes[i])]++] = static_cast<uint32_t>(i);
    size_t at = 0;
    for (uint32_t s = 0; s < kCacheShards; ++s) {
      if (at == end[s]) continue;
      Shard& shard = shards_[s];
      absl::MutexLock lock(&shard.mutex);
      if (clears_.load() != began.clears) return;
      for (size_t i = at; i < std::min<size_t>(at + kInsertAhead, end[s]); ++i) {
        shard.rows.PrefetchInsert(hashes[order[i]]);
      }
      for (; at < end[s]; ++at) {
        if (at + kInsertAhead < end[s]) shard.rows.PrefetchInsert(hashes[order[at + kInsertAhead]]);
        const size_t i = round + order[at];
        const size_t row = positions.empty() ? i : positions[i];
        AcceptOne(shard, ids[i], hashes[order[at]], began.ns, epoch, rows + row * dim_);
      }
    }
  }
}

void ReadCache::Clear() {
  ++clears_;
  EraseIf([](const CacheHeader&) { return true; });
}

void ReadCache::Forget(absl::Span<const uint64_t> ids) {
  ++clears_;
  const absl::flat_hash_set<uint64_t> gone(ids.begin(), ids.end());
  EraseIf([&](const CacheHeader& record) { return gone.contains(record.id); });
}

ReadCacheStatistics ReadCache::Statistics() const {
  ReadCacheStatistics s;
  s.lookups = lookups_;
  s.hits = hits_;
  s.expired = expired_;
  s.forgotten = forgotten_;
  s.bypassed = gauge_.bypassed();
  for (uint32_t i = 0; i < kCacheShards; ++i) {
    const Shard& shard = shards_[i];
    absl::ReaderMutexLock lock(&shard.mutex);
    s.admitted += shard.admitted;
    s.refused += shard.rows.refused();
    s.evicted += shard.rows.evicted();
    s.rows += shard.rows.rows();
    s.bytes += shard.rows.bytes();
    s.capacity += shard.rows.capacity();
  }
  return s;
}

ReadPart::ReadPart(std::shared_ptr<ReadCache> cache, absl::Span<const uint64_t> ids, float* rows)
    : cache_(std::move(cache)),
      ids_(ids),
      rows_(rows),
      began_(cache_->Now()),
      decision_(cache_->gauge()->Begin(ids.size())),
      generations_(cache_->num_servers(), 0) {
  if (!decision_.uses_cache) return;
  positions_ = cache_->Find(began_, ids, rows);
  some_hit_ = positions_.size() < ids.size();
  if (!some_hit_) return;
  missing_.reserve(positions_.size());
  for (const uint32_t position : positions_) missing_.push_back(ids[position]);
}

void ReadPart::Finish() {
  if (decision_.uses_cache) {
    cache_->Accept(began_, missing(), positions(), rows_, generations_);
  } else {
    cache_->Adopt(generations_);
  }
  FinishUnasked();
}

void ReadPart::FinishUnasked() {
  if (decision_.timed) cache_->gauge()->End(decision_, ids_.size(), cache_->Now().ns - began_.ns);
}

}  // namespace tandem::ps
