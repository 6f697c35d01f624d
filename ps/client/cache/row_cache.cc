// SPDX-License-Identifier: Apache-2.0
#include "ps/client/cache/row_cache.h"

#include <algorithm>
#include <cstring>

#include "absl/container/flat_hash_set.h"
#include "base/random.h"
#include "ps/occurrences.h"

namespace tandem::ps {
namespace {

// The number of ids that are read per locking. It is large enough to make locking cheap, and small enough
// that writers wait for about ten microseconds.
constexpr size_t kIdsPerLock = 512;
// The number of ids that are prefetched before the first one is used.
constexpr size_t kPrefetchBlock = 32;
constexpr size_t kPrefetchAhead = 8;  // the same when ids are written one by one
constexpr uint32_t kUsesGained = 2;   // uses that a row gains each time it arrives
constexpr size_t kCacheLine = 64;

void PrefetchRecord(const CacheHeader* record, size_t bytes) {
  const char* const end = reinterpret_cast<const char*>(record) + std::min<size_t>(bytes, 1024);
  for (const char* at = reinterpret_cast<const char*>(record); at < end; at += kCacheLine) {
    __builtin_prefetch(at, 0, 2);
  }
}

uint32_t LowHalf(uint64_t number) { return static_cast<uint32_t>(number); }

}  // namespace

RowCache::RowCache(const v1::TableConfig& table, const CacheOptions& options, const ShardMap* map)
    : dim_(table.dim()),
      options_(options),
      map_(map),
      generations_(map->num_servers(), 0),
      newest_(new std::atomic<uint32_t>[map->num_servers()]()),
      shards_(new Shard[kCacheShards]) {
  uint64_t capacity = 0;
  for (uint32_t s = 0; s < kCacheShards; ++s) {
    absl::MutexLock lock(&shards_[s].mutex);
    shards_[s].rows.Init(options.bytes / kCacheShards, dim_,
                         defers() ? CacheLayout::kDefers : CacheLayout::kFollows);
    capacity += shards_[s].rows.capacity();
  }
  // TinyLFU uses samples of about ten times the capacity.
  window_ = 8 * capacity;
}

uint16_t RowCache::Epoch(uint64_t more) {
  return static_cast<uint16_t>((uses_.fetch_add(more, std::memory_order_relaxed) + more) / window_);
}

std::vector<uint64_t> RowCache::Generations() const {
  absl::ReaderMutexLock lock(&generations_mutex_);
  return generations_;
}

void RowCache::Find(absl::Span<const uint64_t> ids, float* rows, uint32_t* versions,
                    Copy* copies) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const uint16_t epoch = Epoch(ids.size());
  const size_t record_bytes = sizeof(CacheHeader) + 2 * dim_ * sizeof(float);
  uint64_t hashes[kPrefetchBlock];
  for (size_t run = 0; run < ids.size(); run += kIdsPerLock) {
    const size_t run_end = std::min(run + kIdsPerLock, ids.size());
    for (uint32_t s = 0; s < kCacheShards; ++s) shards_[s].mutex.ReaderLock();
    for (size_t first = run; first < run_end; first += kPrefetchBlock) {
      const size_t count = std::min(kPrefetchBlock, run_end - first);
      for (size_t i = 0; i < count; ++i) {
        const uint64_t hash = hashes[i] = Mix64(ids[first + i]);
        __builtin_prefetch(shards_[CacheShardOf(hash)].rows.Cell(hash), 0, 2);
      }
      for (size_t i = 0; i < count; ++i) {
        const CacheHeader* const record = shards_[CacheShardOf(hashes[i])].rows.Guess(hashes[i]);
        if (record != nullptr) PrefetchRecord(record, record_bytes);
      }
      for (size_t i = 0; i < count; ++i) {
        const size_t at = first + i;
        const CacheShard& shard = shards_[CacheShardOf(hashes[i])].rows;
        CacheHeader* const record = shard.Find(ids[at], hashes[i]);
        versions[at] = 0;
        copies[at] = kNone;
        if (record == nullptr) continue;
        CacheShard::Use(record, epoch);
        std::atomic_ref<uint16_t> served(record->served);
        const uint16_t before = served.load(std::memory_order_relaxed);
        if (before >= std::min<uint32_t>(options_.max_uses, kUsesGained * record->arrived)) {
          copies[at] = kSpent;
          continue;
        }
        // Threads that count at the same time may count once
        served.store(before + 1, std::memory_order_relaxed);
        shard.ReadMoved(record, rows + at * dim_);
        versions[at] = record->version;
        const auto age = static_cast<int32_t>(newest_[ServerOf(hashes[i])].load(std::memory_order_relaxed) -
                                              record->version);
        copies[at] = age > 0 && static_cast<uint32_t>(age) > options_.max_age ? kOld : kUse;
      }
    }
    for (uint32_t s = 0; s < kCacheShards; ++s) shards_[s].mutex.ReaderUnlock();
  }
}

template <typename Wanted>
RowCache::Order RowCache::OrderByShard(absl::Span<const uint64_t> ids, const Wanted& wanted) const {
  Order order;
  order.hashes.resize(ids.size());
  std::vector<uint32_t> some;
  some.reserve(ids.size());
  uint32_t counts[kCacheShards] = {};
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint64_t hash = order.hashes[i] = Mix64(ids[i]);
    if (!wanted(i, hash)) continue;
    some.push_back(static_cast<uint32_t>(i));
    ++counts[CacheShardOf(hash)];
  }
  uint32_t at = 0;
  for (uint32_t s = 0; s < kCacheShards; ++s) {
    order.begin[s] = at;
    at += counts[s];
    counts[s] = order.begin[s];
  }
  order.begin[kCacheShards] = at;
  order.positions.resize(at);
  for (const uint32_t i : some) order.positions[counts[CacheShardOf(order.hashes[i])]++] = i;
  return order;
}

bool RowCache::ChangesCopy(const Response& response, size_t at, uint64_t hash) const {
  return response.sent[at] ||
         LowHalf(response.versions[ServerOf(hash)]) - response.requested[at] > options_.max_age;
}

void RowCache::Adopt(const Response& response) {
  const absl::Span<const uint64_t> generations = response.generations;
  {
    absl::ReaderMutexLock lock(&generations_mutex_);
    if (generations == absl::MakeConstSpan(generations_)) {
      for (size_t s = 0; s < response.applied.size(); ++s) {
        const uint32_t applied = LowHalf(response.applied[s]);
        uint32_t newest = newest_[s].load(std::memory_order_relaxed);
        while (static_cast<int32_t>(applied - newest) > 0 &&
               !newest_[s].compare_exchange_weak(newest, applied, std::memory_order_relaxed)) {
        }
      }
      return;
    }
  }
  absl::MutexLock lock(&generations_mutex_);
  // A late response from before a restart changes the generations back once more. That costs copies but not
  // correctness: the server lets no copy of another generation serve.
  std::vector<bool> changed(generations.size(), false);
  for (size_t s = 0; s < generations.size(); ++s) {
    changed[s] = generations[s] != generations_[s];
    generations_[s] = generations[s];
    newest_[s].store(LowHalf(response.applied[s]), std::memory_order_relaxed);
  }
  for (uint32_t s = 0; s < kCacheShards; ++s) {
    Shard& shard = shards_[s];
    absl::MutexLock shard_lock(&shard.mutex);
    // Deferred gradients stay valid when the rows are replaced: the next push sends them.
    forgotten_ += shard.rows.EraseIf(
        [&](const CacheHeader& record) { return changed[ServerOf(Mix64(record.id))]; }, &shard.to_send);
  }
}

void RowCache::AcceptOne(Shard& shard, const Response& response, uint32_t at, uint64_t hash, uint16_t epoch) {
  const uint64_t id = response.ids[at];
  const uint64_t version = response.versions[ServerOf(hash)];
  CacheHeader* record = shard.rows.Find(id, hash);
  if (!response.sent[at]) {
    // Another response may have brought a newer row.
    if (record == nullptr || record->version != response.requested[at]) return;
    // The copy was too old, and the row was not sent: it has not been updated up to the response's version.
    if (LowHalf(version) - record->version > options_.max_age && LowHalf(version) != 0) {
      record->version = LowHalf(version);
    }
    return;
  }
  if (LowHalf(version) == 0) return;  // 0 stands for no copy
  if (record == nullptr) {
    record = shard.rows.Insert(id, hash, epoch, &shard.to_send);
    if (record == nullptr) return;
    ++shard.admitted;
  } else if (static_cast<int32_t>(LowHalf(version) - record->version) < 0) {
    return;  // responses may overtake each other
  }
  record->version = LowHalf(version);
  shard.rows.Replace(record, response.rows + size_t{response.positions[at]} * dim_);
}

void RowCache::Accept(const Response& response) {
  Adopt(response);
  absl::ReaderMutexLock lock(&generations_mutex_);
  if (response.generations != absl::MakeConstSpan(generations_)) return;  // changed again in the meantime
  const Order order =
      OrderByShard(response.ids, [&](size_t at, uint64_t hash) { return ChangesCopy(response, at, hash); });
  const uint16_t epoch = Epoch(0);
  for (uint32_t s = 0; s < kCacheShards; ++s) {
    Shard& shard = shards_[s];
    absl::MutexLock shard_lock(&shard.mutex);
    for (uint32_t i = order.begin[s]; i < order.begin[s + 1]; ++i) {
      if (i + kPrefetchAhead < order.begin[s + 1]) {
        __builtin_prefetch(shard.rows.Cell(order.hashes[order.positions[i + kPrefetchAhead]]), 0, 2);
      }
      const uint32_t at = order.positions[i];
      AcceptOne(shard, response, at, order.hashes[at], epoch);
    }
  }
}

void RowCache::Merge(absl::Span<const uint64_t> ids, const float* gradients, float learning_rate_factor,
                     absl::Span<const uint64_t> pulled_versions, DeferredGradients* out,
                     absl::Span<const uint32_t> occurrences) {
  if (!pulled_versions.empty()) {
    absl::MutexLock lock(&pulled_mutex_);
    pulled_.resize(pulled_versions.size());
    for (size_t s = 0; s < pulled_.size(); ++s) pulled_[s] = std::max(pulled_[s], pulled_versions[s]);
  }
  const Order order = OrderByShard(ids, [](size_t, uint64_t) { return true; });
  uint64_t deferred = 0;
  int64_t rows = 0;
  for (uint32_t s = 0; s < kCacheShards; ++s) {
    Shard& shard = shards_[s];
    absl::MutexLock lock(&shard.mutex);
    for (uint32_t i = order.begin[s]; i < order.begin[s + 1]; ++i) {
      const uint32_t at = order.positions[i];
      const uint64_t hash = order.hashes[at];
      const float* const gradient = gradients + size_t{at} * dim_;
      CacheHeader* const record = shard.rows.Find(ids[at], hash);
      if (record != nullptr) shard.rows.Follow(record, gradient, learning_rate_factor);
      if (out == nullptr) continue;
      const uint32_t server = ServerOf(hash);
      const uint32_t version =
          server < pulled_versions.size() ? static_cast<uint32_t>(pulled_versions[server]) : 0;
      const uint32_t occurred = occurrences.empty() ? 1 : occurrences[at];
      if (record == nullptr) {
        out->ids.push_back(ids[at]);
        out->versions.push_back(version);
        out->occurrences.push_back(occurred);
        out->sums.insert(out->sums.end(), gradient, gradient + dim_);
        continue;
      }
      float* const sums = shard.rows.DeferredSums(record);
      if (record->deferred == 0) {
        std::memcpy(sums, gradient, dim_ * sizeof(float));
        *shard.rows.DeferredVersion(record) = version;
        *shard.rows.DeferredOccurrences(record) = occurred;
        ++rows;
      } else {
        uint32_t* const sum = shard.rows.DeferredOccurrences(record);
        *sum = AddOccurrences(*sum, occurred);
        for (uint32_t d = 0; d < dim_; ++d) sums[d] += gradient[d];
      }
      ++deferred;
      if (++record->deferred < options_.push_bound) continue;
      shard.rows.TakeDeferred(record, out);
      --rows;
    }
    if (out == nullptr) continue;
    rows -= static_cast<int64_t>(shard.to_send.ids.size());
    out->Append(shard.to_send);
    shard.to_send.Clear();
  }
  held_gradients_ += deferred;
  held_rows_ += static_cast<uint64_t>(rows);
}

void RowCache::TakeDeferred(DeferredGradients* out, std::vector<uint64_t>* pulled) {
  const size_t before = out->ids.size();
  for (uint32_t s = 0; s < kCacheShards; ++s) {
    Shard& shard = shards_[s];
    absl::MutexLock lock(&shard.mutex);
    out->Append(shard.to_send);
    shard.to_send.Clear();
    shard.rows.TakeAllDeferred(out);
  }
  held_rows_ -= out->ids.size() - before;
  absl::MutexLock lock(&pulled_mutex_);
  *pulled = pulled_;
}

std::vector<uint64_t> RowCache::Oldest(const DeferredGradients& gradients,
                                       absl::Span<const uint64_t> near) const {
  std::vector<uint64_t> oldest(near.begin(), near.end());
  for (size_t i = 0; i < gradients.ids.size() && !near.empty(); ++i) {
    const uint32_t server = ServerOf(Mix64(gradients.ids[i]));
    const auto behind = static_cast<int32_t>(LowHalf(near[server]) - gradients.versions[i]);
    // Version 0 means unknown.
    if (gradients.versions[i] == 0 || behind <= 0 || static_cast<uint64_t>(behind) > near[server]) continue;
    oldest[server] = std::min(oldest[server], near[server] - static_cast<uint64_t>(behind));
  }
  return oldest;
}

void RowCache::Clear() {
  DeferredGradients gone;
  absl::MutexLock lock(&generations_mutex_);
  for (uint32_t s = 0; s < kCacheShards; ++s) {
    Shard& shard = shards_[s];
    absl::MutexLock shard_lock(&shard.mutex);
    shard.rows.EraseIf([](const CacheHeader&) { return true; }, &gone);
    gone.Append(shard.to_send);
    shard.to_send.Clear();
  }
  held_rows_ -= gone.ids.size();
}

void RowCache::Forget(absl::Span<const uint64_t> ids) {
  absl::flat_hash_set<uint64_t> gone[kCacheShards];
  for (const uint64_t id : ids) gone[CacheShardOf(Mix64(id))].insert(id);
  absl::MutexLock lock(&generations_mutex_);
  for (uint32_t s = 0; s < kCacheShards; ++s) {
    if (gone[s].empty()) continue;
    Shard& shard = shards_[s];
    absl::MutexLock shard_lock(&shard.mutex);
    forgotten_ += shard.rows.EraseIf([&](const CacheHeader& record) { return gone[s].contains(record.id); },
                                     &shard.to_send);
  }
}

void RowCache::CountPull(uint64_t locally_served, uint64_t unchanged, uint64_t refreshed, uint64_t missed,
                         uint64_t request_bytes, uint64_t response_bytes, uint64_t age_sum,
                         uint64_t age_max) {
  locally_served_ += locally_served;
  unchanged_ += unchanged;
  refreshed_ += refreshed;
  missed_ += missed;
  request_bytes_ += request_bytes;
  response_bytes_ += response_bytes;
  age_sum_ += age_sum;
  uint64_t max = age_max_.load(std::memory_order_relaxed);
  while (age_max > max && !age_max_.compare_exchange_weak(max, age_max, std::memory_order_relaxed)) {
  }
}

CacheStatistics RowCache::Statistics() const {
  CacheStatistics s;
  s.locally_served = locally_served_;
  s.unchanged = unchanged_;
  s.refreshed = refreshed_;
  s.missed = missed_;
  s.lookups = s.locally_served + s.unchanged + s.refreshed + s.missed;
  s.forgotten = forgotten_;
  s.request_bytes = request_bytes_;
  s.response_bytes = response_bytes_;
  s.plain_request_bytes = s.lookups * sizeof(uint64_t);
  s.plain_response_bytes = s.lookups * dim_ * sizeof(float);
  s.age_mean = s.lookups == 0 ? 0.0 : static_cast<double>(age_sum_) / static_cast<double>(s.lookups);
  s.age_max = age_max_;
  s.held_gradients = held_gradients_;
  s.held_rows = held_rows_;
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

}  // namespace tandem::ps
