// Updating rows.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "base/random.h"
#include "base/status.h"
#include "ps/storage/bucketed_storage.h"
#include "ps/storage/prefetch.h"
#include "ps/storage/row_codec.h"

namespace tandem::ps {
namespace {

constexpr uint32_t kNotMerged = ~uint32_t{0};
// When locks have few items each, up to so many are taken together, to fill the pipeline.
constexpr size_t kMaxLocked = 16;
// Rows are updated so many at a time, while the next ones and their gradients come from memory. What is at
// hand at a time fits the first-level cache.
constexpr size_t kMaxRows = 16;
constexpr size_t kBytesAtHand = size_t{12} << 10;
constexpr size_t kBlocksAhead = 2;
// Updates of fewer rows are over before another thread has woken up.
constexpr size_t kWorthSharing = 2048;

}  // namespace

struct BucketedStorage::Update {
  // Groups [begin, end), locked together: several small ones or one of any size.
  struct Block {
    size_t begin;
    size_t end;
  };
  const float* gradients;
  const ApplyOptions& options;
  uint64_t time;
  float learning_rate_factor;
  absl::Span<const Grouping::Item> items;
  absl::Span<const Grouping::Group> groups;
  absl::InlinedVector<Block, kLocks> blocks;
  std::atomic<size_t> next_block{0};
  std::atomic<uint64_t> skipped{0};

  absl::Span<const Grouping::Item> ItemsOf(const Block& block) const {
    return items.subspan(groups[block.begin].begin, groups[block.end - 1].end - groups[block.begin].begin);
  }
  void MakeBlocks() {
    for (size_t begin = 0, end = 0; begin < groups.size(); begin = end) {
      end = begin + 1;
      while (end < groups.size() && end - begin < kMaxLocked &&
             groups[end].end - groups[begin].begin <= kBatch) {
        ++end;
      }
      blocks.push_back({begin, end});
    }
  }
};

// (Looking up the rows of the next block while those of this one were updated, a few at a time, was tried: it
// was no faster, since both wait for the same memory.)
void BucketedStorage::RunBlocks(Update* update, Scratch* scratch) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const auto now = static_cast<uint32_t>(update->time);
  uint64_t skipped = 0;
  while (true) {
    const size_t next = update->next_block.fetch_add(1, std::memory_order_relaxed);
    if (next >= update->blocks.size()) break;
    const Update::Block& block = update->blocks[next];
    for (size_t g = block.begin; g < block.end; ++g) locks_[update->groups[g].bucket].Lock();
    {
      const PauseTimer timer(&longest_pause_ns_);
      skipped += UpdateItems(update->ItemsOf(block), now, *update, scratch);
    }
    for (size_t g = block.begin; g < block.end; ++g) locks_[update->groups[g].bucket].Unlock();
  }
  update->skipped.fetch_add(skipped, std::memory_order_relaxed);
}

uint64_t BucketedStorage::UpdateItems(absl::Span<const Grouping::Item> items, uint32_t now,
                                      const Update& update, Scratch* scratch) {
  // Behind a tier an id without a row may have one on disk: ApplyAbsent asks there before admission.
  if (!admission_->at_pull() && tier_ == nullptr) AdmitItems(items, update.time, scratch);
  const uint64_t skipped = CollectUpdates(items, now, update.gradients, update.options.row_factors, scratch);
  RunOptimizer(now, update.learning_rate_factor, scratch);
  // Only buckets that this update touched: which those are does not depend on how buckets share locks and
  // servers.
  if (bucket_quota_ == kNoQuota) return skipped;
  for (const Grouping::Item& item : items) {
    const uint32_t bucket = BucketOfHash(item.hash);
    if (buckets_[bucket].size() <= bucket_quota_) continue;
    if (tier_ == nullptr) {
      EvictToQuota(bucket, now);
    } else {
      scratch->over.push_back(bucket);
    }
  }
  return skipped;
}

absl::StatusOr<uint64_t> BucketedStorage::Apply(absl::Span<const uint64_t> ids, const float* gradients,
                                                const ApplyOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  const uint64_t time = clock_.fetch_add(1, std::memory_order_relaxed) + 1;
  const uint32_t now = static_cast<uint32_t>(time);
  uint64_t skipped = 0;
  if (!ids.empty()) {
    const float learning_rate_factor = options.learning_rate_factor * optimizer_->WarmUp(time);
    std::unique_ptr<Scratch> scratch = TakeScratch();
    scratch->grouping.Run(ids, lock_mask_ + 1);
    scratch->absent.clear();
    scratch->over.clear();
    Update update{.gradients = gradients,
                  .options = options,
                  .time = time,
                  .learning_rate_factor = learning_rate_factor,
                  .items = scratch->grouping.items(),
                  .groups = scratch->grouping.groups()};
    update.MakeBlocks();
    if (options.helpers != nullptr && tier_ == nullptr && ids.size() >= kWorthSharing) {
      std::atomic<bool> is_first{true};
      options.helpers->Share([&] {
        if (is_first.exchange(false, std::memory_order_relaxed)) return RunBlocks(&update, scratch.get());
        std::unique_ptr<Scratch> own = TakeScratch();
        RunBlocks(&update, own.get());
        ReleaseScratch(std::move(own));
      });
    } else {
      RunBlocks(&update, scratch.get());
    }
    skipped = update.skipped.load(std::memory_order_relaxed);
    absl::Status status;
    if (tier_ != nullptr) {
      const absl::StatusOr<uint64_t> absent =
          ApplyAbsent(gradients, options, time, learning_rate_factor, scratch.get());
      skipped = absent.value_or(0);
      status = absent.status();
      SpillOver(&scratch->over, now, bucket_quota_);
    }
    ReleaseScratch(std::move(scratch));
    TANDEM_RETURN_IF_ERROR(status);
  }
  if (!admission_->at_pull()) refused_.fetch_add(skipped, std::memory_order_relaxed);
  if (eviction_ != nullptr && eviction_->sweeps()) {
    const uint32_t bucket = static_cast<uint32_t>(time) & bucket_mask_;
    const FairLock::Writer lock(&LockOfBucket(bucket));
    const PauseTimer timer(&longest_pause_ns_);
    EraseExpired(&buckets_[bucket], now);
  }
  return skipped;
}

void BucketedStorage::AdmitItems(absl::Span<const Grouping::Item> items, uint64_t now, Scratch* scratch) {
  scratch->weights.resize(std::max(scratch->weights.size(), dim_));
  const Cell* cells[kMaxLookup];
  for (size_t i = 0; i < items.size(); ++i) {
    if (i % kMaxLookup == 0) FindCells(indexes(), items.subspan(i, kMaxLookup), cells);
    // Cells move when rows are made, but none becomes empty.
    if (cells[i % kMaxLookup] != nullptr) continue;
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

// Fills scratch->updates with one entry per distinct row of the (locked) items, with the sum of its
// gradients. Returns how many items have no row.
uint64_t BucketedStorage::CollectUpdates(absl::Span<const Grouping::Item> items, uint32_t now,
                                         const float* gradients, const float* row_factors, Scratch* scratch) {
  scratch->updates.clear();
  scratch->update_ids.clear();
  scratch->duplicates.clear();
  scratch->seen.clear();
  scratch->updates.reserve(items.size());
  uint64_t skipped = 0;
  const RowAddress address = pool_.address();
  const Cell* cells[kMaxLookup];
  for (size_t first = 0; first < items.size(); first += kMaxLookup) {
    const absl::Span<const Grouping::Item> some = items.subspan(first, kMaxLookup);
    FindCells(indexes(), some, cells);
    for (size_t i = 0; i < some.size(); ++i) {
      const Grouping::Item& item = some[i];
      auto* const cell = const_cast<Cell*>(cells[i]);  // this call has its lock alone
      if (cell == nullptr) {
        ++skipped;
        if (tier_ != nullptr) scratch->absent.push_back(item);
        continue;
      }
      char* const row = address.Of(cell->slot);
      // A row of this version was most likely seen before in this call; one that was just made may have it,
      // too.
      if ((cell->version == now || !scratch->seen.empty()) &&
          IsDuplicate(row, item.position, cell->version == now, scratch)) {
        continue;
      }
      cell->version = now;
      scratch->updates.push_back({reinterpret_cast<float*>(row), layout_.state(row),
                                  gradients + size_t{item.position} * dim_,
                                  row_factors == nullptr ? 1.0f : row_factors[item.position]});
      if (stochastic_rounding_) scratch->update_ids.push_back(item.id);
    }
  }
  if (!scratch->duplicates.empty()) MergeDuplicates(gradients, scratch);
  return skipped;
}

// Whether the row has an entry in scratch->updates already; if so, notes the gradient as its duplicate. The
// map of rows seen is made when a row first looks `suspicious`, and then kept up to date.
bool BucketedStorage::IsDuplicate(const char* row, uint32_t position, bool suspicious, Scratch* scratch) {
  const auto next = static_cast<uint32_t>(scratch->updates.size());
  if (scratch->seen.empty()) {
    for (uint32_t u = 0; u < next; ++u) {
      scratch->seen.emplace(reinterpret_cast<const char*>(scratch->updates[u].weights), u);
    }
  }
  const auto [entry, is_new] = scratch->seen.emplace(row, next);
  if (is_new || !suspicious) return false;
  scratch->duplicates.push_back({entry->second, position});
  return true;
}

void BucketedStorage::MergeDuplicates(const float* gradients, Scratch* scratch) {
  scratch->merged_index.assign(scratch->updates.size(), kNotMerged);
  scratch->merged_sums.resize(scratch->duplicates.size() * dim_);
  uint32_t merged = 0;
  for (const Duplicate& duplicate : scratch->duplicates) {
    RowUpdate& update = scratch->updates[duplicate.update];
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
  const absl::Span<RowUpdate> updates = absl::MakeSpan(scratch->updates);
  const size_t bytes = layout_.row_bytes + dim_ * sizeof(float);
  const size_t block = std::clamp<size_t>(kBytesAtHand / bytes, 1, kMaxRows);
  const auto prefetch = [&](size_t begin) {
    for (size_t u = begin; u < std::min(begin + block, updates.size()); ++u) {
      Prefetch(reinterpret_cast<const char*>(updates[u].weights), layout_.row_bytes);
      Prefetch(reinterpret_cast<const char*>(updates[u].gradient), dim_ * sizeof(float));
    }
  };
  for (size_t begin = 0; begin < kBlocksAhead * block; begin += block) prefetch(begin);
  for (size_t begin = 0; begin < updates.size(); begin += block) {
    prefetch(begin + kBlocksAhead * block);
    const absl::Span<RowUpdate> some = updates.subspan(begin, block);
    if (layout_.count_offset != 0) {
      for (const RowUpdate& update : some) Count(reinterpret_cast<char*>(update.weights));
    }
    if (layout_.f32()) {
      optimizer_->Update(some, dim_, learning_rate_factor);
    } else {
      UpdateUnpacked(begin, some, now, learning_rate_factor, scratch);
    }
  }
}

void BucketedStorage::Count(char* row) const {
  const uint32_t count = layout_.count(row);
  if (count != std::numeric_limits<uint32_t>::max()) layout_.set_count(row, count + 1);
}

// For rows that are not stored as floats: unpacks, updates and packs `some`, scratch->updates[first ...].
void BucketedStorage::UpdateUnpacked(size_t first, absl::Span<RowUpdate> some, uint32_t now,
                                     float learning_rate_factor, Scratch* scratch) {
  scratch->weights.resize(kMaxRows * dim_);
  float* const weights = scratch->weights.data();
  char* rows[kMaxRows];
  uint64_t rounding_keys[kMaxRows];
  for (size_t i = 0; i < some.size(); ++i) {
    rows[i] = reinterpret_cast<char*>(some[i].weights);
    if (stochastic_rounding_) rounding_keys[i] = Mix64(Mix64(seed_, scratch->update_ids[first + i]), now);
    some[i].weights = weights + i * dim_;
  }
  const absl::Span<char* const> from = absl::MakeConstSpan(rows, some.size());
  LoadRows(layout_.dtype, from, dim_, weights);
  optimizer_->Update(some, dim_, learning_rate_factor);
  StoreRows(layout_.dtype, from, dim_, weights, stochastic_rounding_ ? rounding_keys : nullptr);
}

}  // namespace tandem::ps
