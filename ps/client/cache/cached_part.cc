// SPDX-License-Identifier: Apache-2.0
#include "ps/client/cache/cached_part.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/random.h"

namespace tandem::ps {

void SortIds(std::vector<uint64_t>* ids, std::vector<uint32_t>* positions) {
  constexpr int kDigit = 11;  // bits: the counters fit the nearest cache
  const size_t count = ids->size();
  if (std::is_sorted(ids->begin(), ids->end())) return;
  uint64_t differing = 0;
  for (const uint64_t id : *ids) differing |= id ^ ids->front();
  std::vector<uint64_t> other_ids(count);
  std::vector<uint32_t> other_positions(count);
  for (int shift = std::countr_zero(differing); shift < 64 - std::countl_zero(differing); shift += kDigit) {
    uint32_t begin[(1 << kDigit) + 1] = {};
    const auto digit = [shift](uint64_t id) { return (id >> shift) & ((1 << kDigit) - 1); };
    for (const uint64_t id : *ids) ++begin[digit(id) + 1];
    for (int d = 0; d < 1 << kDigit; ++d) begin[d + 1] += begin[d];
    for (size_t i = 0; i < count; ++i) {
      const uint32_t to = begin[digit((*ids)[i])]++;
      other_ids[to] = (*ids)[i];
      other_positions[to] = (*positions)[i];
    }
    ids->swap(other_ids);
    positions->swap(other_positions);
  }
}

CachedPart::CachedPart(std::shared_ptr<RowCache> cache, absl::Span<const uint64_t> ids, float* rows,
                       bool sort)
    : cache_(std::move(cache)), ids_(ids), rows_(rows), versions_(ids.size()), copies_(ids.size()) {
  conditional_.max_age = cache_->options().max_age;
  conditional_.generations = cache_->Generations();  // must be read before Find
  conditional_.response_generations = conditional_.generations;
  conditional_.response_applied.assign(conditional_.generations.size(), 0);
  cache_->Find(ids, rows, versions_.data(), copies_.data());
  conditional_.locally_served.assign(conditional_.generations.size(), 0);
  requested_.reserve(ids.size());
  requested_positions_.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (copies_[i] == RowCache::kUse) {
      ++conditional_.locally_served[cache_->ServerOf(Mix64(ids[i]))];
      continue;
    }
    requested_.push_back(ids[i]);
    requested_positions_.push_back(static_cast<uint32_t>(i));
  }
  if (sort) SortIds(&requested_, &requested_positions_);
  requested_versions_.resize(requested_.size());
  for (size_t i = 0; i < requested_.size(); ++i) requested_versions_[i] = versions_[requested_positions_[i]];
  conditional_.versions = requested_versions_;
  conditional_.positions = requested_positions_;
  conditional_.sent.assign(requested_.size(), 0);
}

void CachedPart::Finish(std::vector<uint64_t>* versions) {
  const std::vector<uint64_t> answered = *versions;
  const std::vector<uint64_t>& applied = conditional_.response_applied;
  uint64_t locally_served = 0, unchanged = 0, refreshed = 0, missed = 0, age_sum = 0, age_max = 0;
  const auto serve = [&](uint64_t id, uint32_t version, bool known_unchanged) {
    const uint32_t server = cache_->ServerOf(Mix64(id));
    const auto behind = static_cast<int32_t>(static_cast<uint32_t>(applied[server]) - version);
    // The copy is newer than this response: another response brought it in the meantime.
    if (behind <= 0 || (known_unchanged && static_cast<uint64_t>(behind) > conditional_.max_age)) return;
    const auto age = static_cast<uint64_t>(behind);
    age_sum += age;
    age_max = std::max(age_max, age);
    if (age <= applied[server]) (*versions)[server] = std::min((*versions)[server], applied[server] - age);
  };
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (copies_[i] != RowCache::kUse) continue;
    ++locally_served;
    serve(ids_[i], versions_[i], false);
  }
  for (size_t i = 0; i < requested_.size(); ++i) {
    if (!conditional_.sent[i]) {
      ++unchanged;
      serve(requested_[i], requested_versions_[i], true);
    } else {
      ++(copies_[requested_positions_[i]] == RowCache::kNone ? missed : refreshed);
    }
  }
  cache_->Accept({.ids = requested_,
                  .requested = requested_versions_.data(),
                  .sent = conditional_.sent.data(),
                  .positions = requested_positions_.data(),
                  .rows = rows_,
                  .versions = answered,
                  .applied = applied,
                  .generations = conditional_.response_generations});
  cache_->CountPull(locally_served, unchanged, refreshed, missed, conditional_.request_bytes,
                    conditional_.response_bytes, age_sum, age_max);
}

}  // namespace tandem::ps
