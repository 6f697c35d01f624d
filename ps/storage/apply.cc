// Updating rows.

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/random.h"
#include "ps/storage/bucketed_storage.h"
#include "ps/storage/prefetch.h"
#include "ps/storage/row_codec.h"

namespace tandem::ps {
namespace {

constexpr uint32_t kNotMerged = ~uint32_t{0};
// As in gather.cc: how far ahead of an item its row and its index line are asked for.
constexpr size_t kRowsAhead = 12;
constexpr size_t kLinesAhead = 12;
// When locks have few items each, up to so many are taken together, to fill the pipeline.
constexpr size_t kMaxLocked = 16;
// Rows that are not stored as floats are unpacked and packed so many at a time: they fit the first-level
// cache.
constexpr size_t kUnpacked = 32;

}  // namespace

// Calls f(items) for runs of groups that are locked together: several small ones or one of any size.
template <class F>
void BucketedStorage::ForEachBlock(const Grouping& grouping, const F& f) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const absl::Span<const Grouping::Group> groups = grouping.groups();
  for (size_t begin = 0, end = 0; begin < groups.size(); begin = end) {
    end = begin + 1;
    while (end < groups.size() && end - begin < kMaxLocked && groups[end].end - groups[begin].begin <= kBatch)
      ++end;
    for (size_t g = begin; g < end; ++g) locks_[groups[g].bucket].mutex.Lock();
    {
      const PauseTimer timer(&longest_pause_ns_);
      f(grouping.items().subspan(groups[begin].begin, groups[end - 1].end - groups[begin].begin));
    }
    for (size_t g = begin; g < end; ++g) locks_[groups[g].bucket].mutex.Unlock();
  }
}

absl::StatusOr<uint64_t> BucketedStorage::Apply(absl::Span<const uint64_t> ids, const float* gradients,
                                                const ApplyOptions& options) {
  const uint64_t time = clock_.fetch_add(1, std::memory_order_relaxed) + 1;
  const uint32_t now = static_cast<uint32_t>(time);
  uint64_t skipped = 0;
  if (!ids.empty()) {
    const float learning_rate_factor = options.learning_rate_factor * optimizer_->WarmUp(time);
    std::unique_ptr<Scratch> scratch = TakeScratch();
    scratch->grouping.Run(ids, lock_mask_ + 1);
    ForEachBlock(scratch->grouping, [&](absl::Span<const Grouping::Item> items) {
      if (!admission_->at_pull()) AdmitItems(items, time, scratch.get());
      skipped += CollectUpdates(items, now, scratch.get());
      MakeRowUpdates(gradients, options, scratch.get());
      RunOptimizer(now, learning_rate_factor, scratch.get());
      // Only buckets that this update touched: which those are does not depend on how buckets share locks and
      // servers.
      for (const Grouping::Item& item : items) {
        RowStore& store = buckets_[BucketOfHash(item.hash)];
        if (store.size() > bucket_quota_) EvictToQuota(&store, now);
      }
    });
    GiveBackScratch(std::move(scratch));
  }
  if (!admission_->at_pull()) refused_.fetch_add(skipped, std::memory_order_relaxed);
  if (eviction_ != nullptr && eviction_->sweeps()) {
    const uint32_t bucket = static_cast<uint32_t>(time) & bucket_mask_;
    absl::MutexLock lock(&LockOfBucket(bucket));
    const PauseTimer timer(&longest_pause_ns_);
    EraseExpired(&buckets_[bucket], now);
  }
  return skipped;
}

void BucketedStorage::AdmitItems(absl::Span<const Grouping::Item> items, uint64_t now, Scratch* scratch) {
  scratch->weights.resize(std::max(scratch->weights.size(), dim_));
  for (size_t i = 0; i < items.size(); ++i) {
    if (i + kLinesAhead < items.size()) {
      const uint64_t ahead = items[i + kLinesAhead].hash;
      __builtin_prefetch(buckets_[BucketOfHash(ahead)].index().Line(ahead), 0, kPrefetchLocality);
    }
    const Grouping::Item& item = items[i];
    const uint32_t b = BucketOfHash(item.hash);
    if (buckets_[b].Find(item.id) != nullptr) continue;
    absl::Span<uint8_t> counters;
    if (!filters_.empty()) {
      if (filters_[b].empty()) filters_[b].resize(admission_->counter_bytes(bucket_mask_ + 1));
      counters = absl::MakeSpan(filters_[b]);
    }
    if (!admission_->Admit({seed_, item.id, now}, counters)) continue;
    InitialValues(item.id, scratch->weights.data());
    InitRow(AddRow(&buckets_[b], item.id, item.hash, static_cast<uint32_t>(now - 1)),
            scratch->weights.data());
    admitted_.fetch_add(1, std::memory_order_relaxed);
  }
}

// Fills scratch->updates with one entry per distinct row of the (locked) items, and scratch->duplicates with
// the gradients beyond the first of each. Returns how many items have no row.
uint64_t BucketedStorage::CollectUpdates(absl::Span<const Grouping::Item> items, uint32_t now,
                                         Scratch* scratch) {
  scratch->updates.clear();
  scratch->duplicates.clear();
  scratch->seen.clear();
  uint64_t skipped = 0;
  const Cell* lines[kLinesAhead + kRowsAhead];
  Cell* cells[kRowsAhead];
  const auto store_of = [&](size_t i) -> RowStore& { return buckets_[BucketOfHash(items[i].hash)]; };
  const auto find_line = [&](size_t i) {
    if (i >= items.size()) return;
    const Cell* const line = store_of(i).index().Line(items[i].hash);
    __builtin_prefetch(line, 0, kPrefetchLocality);
    lines[i % std::size(lines)] = line;
  };
  const auto find_cell = [&](size_t i) {
    if (i >= items.size()) return;
    RowStore& store = store_of(i);
    Cell* const cell = store.index().Find(lines[i % std::size(lines)], items[i].id, items[i].hash);
    cells[i % std::size(cells)] = cell;
    if (cell != nullptr) Prefetch(store.RowAt(cell->slot()), layout_.stride);
  };
  for (size_t i = 0; i < std::size(lines); ++i) find_line(i);
  for (size_t i = 0; i < kRowsAhead; ++i) find_cell(i);
  for (size_t i = 0; i < items.size(); ++i) {
    Cell* const cell = cells[i % kRowsAhead];
    if (cell == nullptr) {
      ++skipped;
    } else {
      Collect(items[i], cell, store_of(i), now, scratch);
    }
    find_cell(i + kRowsAhead);
    find_line(i + std::size(lines));
  }
  return skipped;
}

void BucketedStorage::Collect(const Grouping::Item& item, Cell* cell, RowStore& store, uint32_t now,
                              Scratch* scratch) {
  char* const row = store.RowAt(cell->slot());
  // A row of this version was most likely seen before in this call; one that was just made may have it, too.
  if (cell->version == now) {
    if (scratch->seen.empty()) {
      for (uint32_t u = 0; u < scratch->updates.size(); ++u)
        scratch->seen.emplace(scratch->updates[u].row, u);
    }
    const auto [entry, is_new] = scratch->seen.emplace(row, static_cast<uint32_t>(scratch->updates.size()));
    if (!is_new) {
      scratch->duplicates.push_back({entry->second, item.position});
      return;
    }
  } else if (!scratch->seen.empty()) {
    scratch->seen.emplace(row, static_cast<uint32_t>(scratch->updates.size()));
  }
  cell->version = now;
  if (const uint32_t count = layout_.count(row); count != std::numeric_limits<uint32_t>::max()) {
    layout_.set_count(row, count + 1);
  }
  scratch->updates.push_back({row, item.id, item.position});
}

void BucketedStorage::MakeRowUpdates(const float* gradients, const ApplyOptions& options, Scratch* scratch) {
  scratch->row_updates.resize(scratch->updates.size());
  for (size_t u = 0; u < scratch->updates.size(); ++u) {
    const Update& update = scratch->updates[u];
    scratch->row_updates[u] = {reinterpret_cast<float*>(update.row), layout_.state(update.row),
                               gradients + size_t{update.position} * dim_};
    if (options.row_factors != nullptr) {
      scratch->row_updates[u].learning_rate_factor = options.row_factors[update.position];
    }
  }
  if (!scratch->duplicates.empty()) MergeDuplicates(gradients, scratch);
}

void BucketedStorage::MergeDuplicates(const float* gradients, Scratch* scratch) {
  scratch->merged_index.assign(scratch->updates.size(), kNotMerged);
  scratch->merged_sums.resize(scratch->duplicates.size() * dim_);
  uint32_t merged = 0;
  for (const Duplicate& duplicate : scratch->duplicates) {
    RowUpdate& update = scratch->row_updates[duplicate.update];
    uint32_t& index = scratch->merged_index[duplicate.update];
    const bool first = index == kNotMerged;
    if (first) index = merged++;
    float* sum = scratch->merged_sums.data() + size_t{index} * dim_;
    if (first) {
      std::memcpy(sum, update.gradient, dim_ * sizeof(float));
      update.gradient = sum;
    }
    const float* gradient = gradients + size_t{duplicate.position} * dim_;
    for (size_t i = 0; i < dim_; ++i) sum[i] += gradient[i];
  }
}

void BucketedStorage::RunOptimizer(uint32_t now, float learning_rate_factor, Scratch* scratch) {
  const absl::Span<RowUpdate> updates = absl::MakeSpan(scratch->row_updates);
  if (layout_.f32()) return optimizer_->Update(updates, dim_, learning_rate_factor);
  scratch->weights.resize(kUnpacked * dim_);
  scratch->row_pointers.resize(kUnpacked);
  scratch->rounding_keys.resize(kUnpacked);
  float* const weights = scratch->weights.data();
  for (size_t first = 0; first < updates.size(); first += kUnpacked) {
    const absl::Span<RowUpdate> some = updates.subspan(first, kUnpacked);
    for (size_t i = 0; i < some.size(); ++i) {
      const Update& update = scratch->updates[first + i];
      scratch->row_pointers[i] = update.row;
      scratch->rounding_keys[i] = Mix64(Mix64(seed_, update.id), now);
      some[i].weights = weights + i * dim_;
    }
    const absl::Span<char* const> rows = absl::MakeConstSpan(scratch->row_pointers.data(), some.size());
    LoadRows(layout_.dtype, rows, dim_, weights);
    optimizer_->Update(some, dim_, learning_rate_factor);
    StoreRows(layout_.dtype, rows, dim_, weights,
              stochastic_rounding_ ? scratch->rounding_keys.data() : nullptr);
  }
}

}  // namespace tandem::ps
