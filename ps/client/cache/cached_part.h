#ifndef TANDEM_PS_CLIENT_CACHE_CACHED_PART_H_
#define TANDEM_PS_CLIENT_CACHE_CACHED_PART_H_

// One part of a pull whose table has a cache: what is left to ask, and how the answers and the copies become
// the rows.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "ps/client/cache/row_cache.h"

namespace tandem::ps {

// What a pull says of copies that it need not be sent again, and what the servers said to that. For ids that
// may lie on several servers; each server's answer writes what is its own.
struct ConditionalPull {
  uint64_t max_age = 0;
  absl::Span<const uint32_t> versions;   // [ids]; 0: no copy
  absl::Span<const uint32_t> positions;  // [ids]: where the row of ids[i] goes, in rows, of those that come
  std::vector<uint64_t> generations;     // [servers], of the copies
  std::vector<uint64_t> locally_served;  // [servers]: rows that need no asking
  // Written by the answers.
  std::vector<uint8_t> sent;  // [ids]: whether the row came
  std::vector<uint64_t> response_generations;
  std::vector<uint64_t> response_applied;  // [servers]: updates made, the answer's version or more
  // Of ids, versions and rows in the payloads.
  std::atomic<uint64_t> request_bytes{0};
  std::atomic<uint64_t> response_bytes{0};
};

// Made for one pull; used by one thread at a time.
class CachedPart {
 public:
  // Fills in the rows of ids that have a copy. `ids` and `rows` ([ids x dim]) must stay until the pull is
  // done. `sort`: ids are asked for in ascending order, which packs them into fewer bytes.
  CachedPart(std::shared_ptr<RowCache> cache, absl::Span<const uint64_t> ids, float* rows, bool sort);

  // The ids that the servers must be asked for; refers to this object.
  absl::Span<const uint64_t> asked() const { return asked_; }
  ConditionalPull* conditional() { return &conditional_; }

  // Once every server has answered: the cache takes over what came. versions: of the answers, per server,
  // which may be behind conditional()->response_applied; on return the oldest of the rows that the pull ends
  // with, as far as it is known.
  void Finish(std::vector<uint64_t>* versions);

 private:
  const std::shared_ptr<RowCache> cache_;
  const absl::Span<const uint64_t> ids_;
  float* const rows_;
  std::vector<uint32_t> versions_;  // [ids], of the copies that may serve
  std::vector<RowCache::Copy> copies_;
  std::vector<uint64_t> asked_;
  std::vector<uint32_t> asked_positions_;  // asked_[i] == ids[asked_positions_[i]]
  std::vector<uint32_t> asked_versions_;
  ConditionalPull conditional_;
};

// Sorts ids, and with them their positions (radix sort by the bits in which they differ).
void SortIds(std::vector<uint64_t>* ids, std::vector<uint32_t>* positions);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CACHE_CACHED_PART_H_
