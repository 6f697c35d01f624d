// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_CACHE_CACHED_PART_H_
#define TANDEM_PS_CLIENT_CACHE_CACHED_PART_H_

// One part of a pull whose table has a cache: determines which ids must be requested, and combines the
// responses with the cached copies.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "ps/client/cache/row_cache.h"

namespace tandem::ps {

// The state of a conditional pull: what the request says about cached copies, and what the servers respond.
// The ids may belong to several servers; each response writes only its own entries.
struct ConditionalPull {
  uint64_t max_age = 0;
  absl::Span<const uint32_t> versions;  // [ids]: versions of the copies; 0: no copy
  // [ids]: index in `rows` of the row of ids[i], if it is sent.
  absl::Span<const uint32_t> positions;
  std::vector<uint64_t> generations;     // [servers]: those of the copies
  std::vector<uint64_t> locally_served;  // [servers]: rows that need no request
  // Written by the responses.
  std::vector<uint8_t> sent;  // [ids]: whether the row was sent
  std::vector<uint64_t> response_generations;
  // [servers]: the updates applied; at least the version of the response.
  std::vector<uint64_t> response_applied;
  // The bytes of ids, versions and rows in the payloads.
  std::atomic<uint64_t> request_bytes{0};
  std::atomic<uint64_t> response_bytes{0};
};

// The cached part of one pull. Used by one thread at a time.
class CachedPart {
 public:
  // Writes the rows of the ids that have a usable copy. `ids` and `rows` ([ids x dim]) must stay valid until
  // the pull ends. `sort`: request the ids in ascending order, which packs them into fewer bytes.
  CachedPart(std::shared_ptr<RowCache> cache, absl::Span<const uint64_t> ids, float* rows, bool sort);

  // Returns the ids to request. Refers to this object.
  absl::Span<const uint64_t> requested() const { return requested_; }
  ConditionalPull* conditional() { return &conditional_; }

  // Adds the received rows to the cache. Must be called after all servers have responded. `versions` are
  // those of the responses, per server, which may be smaller than conditional()->response_applied. On return
  // they are the oldest versions of the rows that the pull returns, as far as they are known.
  void Finish(std::vector<uint64_t>* versions);

 private:
  const std::shared_ptr<RowCache> cache_;
  const absl::Span<const uint64_t> ids_;
  float* const rows_;
  std::vector<uint32_t> versions_;  // [ids]: those of the copies that may serve
  std::vector<RowCache::Copy> copies_;
  std::vector<uint64_t> requested_;
  std::vector<uint32_t> requested_positions_;  // requested_[i] == ids[requested_positions_[i]]
  std::vector<uint32_t> requested_versions_;
  ConditionalPull conditional_;
};

// Sorts ids together with their positions (radix sort by the bits in which the ids differ).
void SortIds(std::vector<uint64_t>* ids, std::vector<uint32_t>* positions);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CACHE_CACHED_PART_H_
