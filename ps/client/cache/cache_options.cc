// SPDX-License-Identifier: Apache-2.0
#include "ps/client/cache/cache_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ps/client/cache/cache_shard.h"

namespace tandem::ps {

absl::Status ValidateCacheOptions(const v1::TableConfig& table, const CacheOptions& options) {
  const auto wrong = [&](const auto&... text) {
    return absl::InvalidArgumentError(absl::StrCat("table '", table.name(), "': cache: ", text...));
  };
  if (options.bytes == 0) return absl::OkStatus();
  if (table.kind() != v1::TableConfig::EMBEDDING) return wrong("dense tables have none");
  const v1::UpdateMode& mode = table.update_mode();
  if (mode.kind() == v1::UpdateMode::SYNC) {
    return wrong("the table is synchronous, which promises the newest rows: make it bounded or async");
  }
  if (options.max_age >= uint64_t{1} << 31)
    return wrong("max_age is ", options.max_age, ", must be below 2^31");
  if (options.max_uses < 1 || options.max_uses > 65535)
    return wrong("max_uses is ", options.max_uses, ", must be in 1 .. 65535");
  if (options.push_bound < 1 || options.push_bound > 1 << 20) {
    return wrong("push_bound is ", options.push_bound, ", must be in 1 .. 2^20");
  }
  if (CacheShard::CapacityOf(options.bytes / kCacheShards, table.dim(),
                             options.push_bound > 1 ? CacheLayout::kDefers : CacheLayout::kFollows) == 0) {
    return wrong("bytes is ", options.bytes, ", less than ", kCacheShards, " rows of dim ", table.dim(),
                 " need");
  }
  if (mode.kind() == v1::UpdateMode::GBA) {
    if (mode.staleness() > 0 && options.max_age >= mode.staleness()) {
      return wrong("max_age is ", options.max_age, ", but pushes older than the mode's staleness of ",
                   mode.staleness(), " are left out of updates: it must be less");
    }
    if (options.push_bound > 1) {
      return wrong("with global-batch aggregation push_bound must be 1, but it is ", options.push_bound);
    }
  }
  return absl::OkStatus();
}

void CacheStatistics::Add(const CacheStatistics& other) {
  const double rows = static_cast<double>(lookups), more = static_cast<double>(other.lookups);
  if (rows + more > 0) age_mean = (age_mean * rows + other.age_mean * more) / (rows + more);
  age_max = std::max(age_max, other.age_max);
  lookups += other.lookups;
  locally_served += other.locally_served;
  unchanged += other.unchanged;
  refreshed += other.refreshed;
  missed += other.missed;
  admitted += other.admitted;
  refused += other.refused;
  evicted += other.evicted;
  forgotten += other.forgotten;
  this->rows += other.rows;
  bytes += other.bytes;
  capacity += other.capacity;
  request_bytes += other.request_bytes;
  response_bytes += other.response_bytes;
  plain_request_bytes += other.plain_request_bytes;
  plain_response_bytes += other.plain_response_bytes;
  held_gradients += other.held_gradients;
  held_rows += other.held_rows;
}

}  // namespace tandem::ps
