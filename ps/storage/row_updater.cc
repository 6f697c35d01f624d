// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/row_updater.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "base/random.h"
#include "ps/occurrences.h"
#include "ps/storage/lookup.h"
#include "ps/storage/prefetch.h"
#include "ps/storage/row_codec.h"

namespace tandem::ps {
namespace {

using Cell = Buckets::Cell;

constexpr uint32_t kNotMerged = ~uint32_t{0};
// Locks with few items each are taken together, to fill the pipeline: at most this many locks, with at most
// this many items.
constexpr size_t kMaxLocked = 16;
constexpr size_t kBatch = 256;
// Rows are updated in blocks of at most this many rows and bytes, so that a block fits the first-level cache.
// The rows and gradients of the next kBlocksAhead blocks are prefetched meanwhile.
constexpr size_t kMaxRows = 16;
constexpr size_t kBytesAtHand = size_t{12} << 10;
constexpr size_t kBlocksAhead = 2;
// Updates of fewer rows end before another thread has woken up.
constexpr size_t kWorthSharing = 2048;

// Returns how often the id at `position` occurred.
uint32_t OccurrencesAt(const UpdateArguments& update, uint32_t position) {
  return update.occurrences == nullptr ? 1 : update.occurrences[position];
}

}  // namespace

RowUpdater::RowUpdater(Buckets* buckets, const Optimizer* optimizer, AdmissionFilter* admission,
                       RowCreator* creator, RowEvictor* evictor, ScratchPool* scratch_pool,
                       const Options& options)
    : buckets_(buckets),
      optimizer_(optimizer),
      admission_(admission),
      creator_(creator),
      evictor_(evictor),
      scratch_pool_(scratch_pool),
      options_(options),
      layout_(buckets->layout()),
      dim_(layout_.dim) {}

// One update, whose blocks several threads may share.
struct RowUpdater::SharedUpdate {
  // Groups [begin, end), which are locked together: several small ones, or one of any size.
  struct Block {
    size_t begin;
    size_t end;
  };
  const UpdateArguments& arguments;
  absl::Span<const Grouping::Item> items;
  absl::Span<const Grouping::Group> groups;
  absl::InlinedVector<Block, Buckets::kMaxLocks> blocks;
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

// (Looking up the rows of the next block while those of this one are updated, a few at a time, is no faster,
// because both wait for the same memory.)
void RowUpdater::RunBlocks(SharedUpdate* shared, Scratch* scratch) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  uint64_t skipped = 0;
  while (true) {
    const size_t next = shared->next_block.fetch_add(1, std::memory_order_relaxed);
    if (next >= shared->blocks.size()) break;
    const SharedUpdate::Block& block = shared->blocks[next];
    for (size_t g = block.begin; g < block.end; ++g) buckets_->lock(shared->groups[g].bucket).Lock();
    {
      const LongestTime::Timer timer(&buckets_->longest_pause());
      skipped += UpdateBlock(shared->ItemsOf(block), shared->arguments, scratch);
    }
    for (size_t g = block.begin; g < block.end; ++g) buckets_->lock(shared->groups[g].bucket).Unlock();
  }
  shared->skipped.fetch_add(skipped, std::memory_order_relaxed);
}

uint64_t RowUpdater::UpdateBlock(absl::Span<const Grouping::Item> items, const UpdateArguments& update,
                                 Scratch* scratch) {
  // An id without a row in memory may have one on disk, which is read before admission is asked.
  const bool admit = !admission_->at_pull() && !options_.spills;
  const uint64_t skipped = UpdateLocked(items, update, admit, scratch);
  // Only buckets that this update touched are considered. They do not depend on how buckets share locks and
  // servers.
  if (buckets_->quota() == Buckets::kNoQuota) return skipped;
  for (const Grouping::Item& item : items) {
    const uint32_t bucket = buckets_->BucketOfHash(item.hash);
    if (buckets_->store(bucket).size() <= buckets_->quota()) continue;
    if (options_.spills) {
      scratch->over.push_back(bucket);
    } else {
      evictor_->EvictToQuota(bucket, update.now());
    }
  }
  return skipped;
}

uint64_t RowUpdater::UpdateLocked(absl::Span<const Grouping::Item> items, const UpdateArguments& update,
                                  bool admit, Scratch* scratch) {
  if (buckets_->cut().any_open()) KeepOldRows(items);
  if (admit) AdmitItems(items, update.time, scratch);
  const uint64_t skipped = CollectUpdates(items, update, scratch);
  RunOptimizer(update, scratch);
  return skipped;
}

uint64_t RowUpdater::Apply(absl::Span<const uint64_t> ids, const UpdateArguments& update, Helpers* helpers,
                           Scratch* scratch) {
  scratch->grouping.Run(ids, buckets_->num_locks());
  SharedUpdate shared{
      .arguments = update, .items = scratch->grouping.items(), .groups = scratch->grouping.groups()};
  shared.MakeBlocks();
  if (helpers != nullptr && !options_.spills && ids.size() >= kWorthSharing) {
    std::atomic<bool> is_first{true};
    helpers->Share([&] {
      if (is_first.exchange(false, std::memory_order_relaxed)) return RunBlocks(&shared, scratch);
      std::unique_ptr<Scratch> own = scratch_pool_->Take();
      RunBlocks(&shared, own.get());
      scratch_pool_->Release(std::move(own));
    });
  } else {
    RunBlocks(&shared, scratch);
  }
  return shared.skipped.load(std::memory_order_relaxed);
}

void RowUpdater::AdmitItems(absl::Span<const Grouping::Item> items, uint64_t now, Scratch* scratch) {
  scratch->weights.resize(std::max(scratch->weights.size(), dim_));
  const Cell* cells[kMaxLookup];
  for (size_t i = 0; i < items.size(); ++i) {
    if (i % kMaxLookup == 0) FindCells(buckets_->indexes(), items.subspan(i, kMaxLookup), cells);
    // Cells move when rows are created, but none becomes empty.
    if (cells[i % kMaxLookup] != nullptr) continue;
    const Grouping::Item& item = items[i];
    const uint32_t bucket = buckets_->BucketOfHash(item.hash);
    RowStore& store = buckets_->store(bucket);
    if (store.Find(item.id) != nullptr) continue;
    if (!admission_->Admit(bucket, item.id, now)) continue;
    creator_->InitialValues(item.id, scratch->weights.data());
    creator_->AdmitRow(&store, item.id, item.hash, static_cast<uint32_t>(now - 1), scratch->weights.data());
  }
}

void RowUpdater::KeepOldRows(absl::Span<const Grouping::Item> items) {
  const RowAddress address = buckets_->row_address();
  const Cell* cells[kMaxLookup];
  for (size_t first = 0; first < items.size(); first += kMaxLookup) {
    const absl::Span<const Grouping::Item> some = items.subspan(first, kMaxLookup);
    FindCells(buckets_->indexes(), some, cells);
    for (size_t i = 0; i < some.size(); ++i) {
      if (cells[i] == nullptr) continue;  // if it is created, RowCreator notes that there was none
      buckets_->cut().Keep(buckets_->BucketOfHash(some[i].hash), some[i].id, cells[i]->version,
                           address.Of(cells[i]->slot));
    }
  }
}

uint64_t RowUpdater::CollectUpdates(absl::Span<const Grouping::Item> items, const UpdateArguments& update,
                                    Scratch* scratch) {
  const uint32_t now = update.now();
  const float* const gradients = update.gradients;
  const float* const row_factors = update.row_factors;
  scratch->updates.clear();
  scratch->update_ids.clear();
  scratch->uses.clear();
  scratch->duplicates.clear();
  scratch->seen.clear();
  scratch->updates.reserve(items.size());
  uint64_t skipped = 0;
  const RowAddress address = buckets_->row_address();
  const Cell* cells[kMaxLookup];
  for (size_t first = 0; first < items.size(); first += kMaxLookup) {
    const absl::Span<const Grouping::Item> some = items.subspan(first, kMaxLookup);
    FindCells(buckets_->indexes(), some, cells);
    for (size_t i = 0; i < some.size(); ++i) {
      const Grouping::Item& item = some[i];
      auto* const cell = const_cast<Cell*>(cells[i]);  // this call holds its lock exclusively
      if (cell == nullptr) {
        ++skipped;
        if (options_.spills) scratch->absent.push_back(item);
        continue;
      }
      char* const row = address.Of(cell->slot);
      // A row of this version was most likely seen before in this call. A row that was just created may have
      // it too.
      if ((cell->version == now || !scratch->seen.empty()) &&
          IsDuplicate(row, item.position, cell->version == now, scratch)) {
        if (layout_.count_offset != 0) {
          uint32_t& occurrences = scratch->uses[scratch->duplicates.back().update].occurrences;
          occurrences = AddOccurrences(occurrences, OccurrencesAt(update, item.position));
        }
        continue;
      }
      if (layout_.count_offset != 0) {
        scratch->uses.push_back({.age = RowEvictor::AgeOf(now, cell->version),
                                 .occurrences = OccurrencesAt(update, item.position)});
      }
      cell->version = now;
      scratch->updates.push_back({reinterpret_cast<float*>(row), layout_.state(row),
                                  gradients + size_t{item.position} * dim_,
                                  row_factors == nullptr ? 1.0f : row_factors[item.position]});
      if (options_.stochastic_rounding) scratch->update_ids.push_back(item.id);
    }
  }
  if (!scratch->duplicates.empty()) MergeDuplicates(gradients, scratch);
  return skipped;
}

bool RowUpdater::IsDuplicate(const char* row, uint32_t position, bool suspicious, Scratch* scratch) {
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

void RowUpdater::MergeDuplicates(const float* gradients, Scratch* scratch) {
  scratch->merged_index.assign(scratch->updates.size(), kNotMerged);
  scratch->merged_sums.resize(scratch->duplicates.size() * dim_);
  uint32_t merged = 0;
  for (const Scratch::Duplicate& duplicate : scratch->duplicates) {
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

void RowUpdater::RunOptimizer(const UpdateArguments& arguments, Scratch* scratch) {
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
    if (layout_.count_offset != 0) CountRows(begin, some, *scratch);
    if (layout_.f32()) {
      optimizer_->Update(some, dim_, arguments.learning_rate_factor, arguments.batch_share);
    } else {
      UpdateUnpacked(begin, some, arguments, scratch);
    }
  }
}

void RowUpdater::CountRows(size_t first, absl::Span<const RowUpdate> some, const Scratch& scratch) const {
  const Eviction& policy = *evictor_->policy();
  for (size_t i = 0; i < some.size(); ++i) {
    char* const row = reinterpret_cast<char*>(some[i].weights);
    const Scratch::Use& use = scratch.uses[first + i];
    layout_.set_count(row, policy.Counted(layout_.count(row), use.age, use.occurrences));
  }
}

void RowUpdater::UpdateUnpacked(size_t first, absl::Span<RowUpdate> some, const UpdateArguments& arguments,
                                Scratch* scratch) {
  scratch->weights.resize(kMaxRows * dim_);
  float* const weights = scratch->weights.data();
  char* rows[kMaxRows];
  uint64_t rounding_keys[kMaxRows];
  for (size_t i = 0; i < some.size(); ++i) {
    rows[i] = reinterpret_cast<char*>(some[i].weights);
    if (options_.stochastic_rounding)
      rounding_keys[i] = Mix64(Mix64(options_.seed, scratch->update_ids[first + i]), arguments.now());
    some[i].weights = weights + i * dim_;
  }
  const absl::Span<char* const> from = absl::MakeConstSpan(rows, some.size());
  LoadRows(layout_.dtype, from, dim_, weights);
  optimizer_->Update(some, dim_, arguments.learning_rate_factor, arguments.batch_share);
  StoreRows(layout_.dtype, from, dim_, weights, options_.stochastic_rounding ? rounding_keys : nullptr);
}

}  // namespace tandem::ps
