// Reading rows, and making them when they are first read.

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/random.h"
#include "base/status.h"
#include "ps/storage/bucketed_storage.h"
#include "ps/storage/prefetch.h"
#include "ps/storage/row_codec.h"

namespace tandem::ps {
namespace {

// Ids that are read under one taking of the locks: enough to make the locks cheap, few enough that writers
// wait for some ten microseconds.
constexpr size_t kRun = 1024;
// A read goes through its ids as a pipeline, kBlock at a time: while the rows of one block are copied, those
// of the next two are on their way from memory, and the index lines of the kLinesAhead ids after those. Each
// stage is a loop of its own, short enough that the processor works on several ids' chains of loads at once.
constexpr size_t kBlock = 8;
constexpr size_t kLinesAhead = 32;
constexpr size_t kRing = 64;

}  // namespace

absl::Status BucketedStorage::Gather(absl::Span<const uint64_t> ids, bool create, float* out) {
  std::vector<uint32_t> missing;
  for (size_t first = 0; first < ids.size(); first += kRun) {
    GatherRun(ids.subspan(first, kRun), static_cast<uint32_t>(first), out + first * dim_, &missing);
  }
  if (missing.empty()) return absl::OkStatus();
  // Those that had to look further came late; rows are made in the order given.
  std::sort(missing.begin(), missing.end());
  FillMissing(ids, missing, create, out);
  return absl::OkStatus();
}

bool BucketedStorage::NeedsNewer(uint64_t id, uint32_t cached, uint32_t now, uint64_t max_age) const {
  if (cached == 0) return true;
  const uint32_t age = now - cached;
  if (age <= max_age) return false;
  const uint64_t hash = Mix64(id);
  const RowIndex& index = buckets_[BucketOfHash(hash)].index();
  const Cell* const cell = index.Find(index.Line(hash), id, hash);
  // A row that is gone reads as its initial value again: its copy is older than that.
  return cell == nullptr || static_cast<int32_t>(cell->version - cached) > 0;
}

absl::StatusOr<size_t> BucketedStorage::GatherNewer(absl::Span<const uint64_t> ids, const uint32_t* cached,
                                                    uint64_t max_age, bool create, float* out,
                                                    uint8_t* sent) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  std::fill_n(sent, (ids.size() + 7) / 8, uint8_t{0});
  std::vector<uint64_t> wanted;
  for (size_t first = 0; first < ids.size(); first += kRun) {
    const absl::Span<const uint64_t> run = ids.subspan(first, kRun);
    const uint32_t needed = LocksOf(run);
    for (uint32_t locks = needed; locks != 0; locks &= locks - 1) {
      locks_[__builtin_ctz(locks)].mutex.ReaderLock();
    }
    const auto now = static_cast<uint32_t>(clock());
    for (size_t i = first; i < first + run.size(); ++i) {
      if (!NeedsNewer(ids[i], cached[i], now, max_age)) continue;
      sent[i / 8] |= static_cast<uint8_t>(1u << (i % 8));
      wanted.push_back(ids[i]);
    }
    for (uint32_t locks = needed; locks != 0; locks &= locks - 1) {
      locks_[__builtin_ctz(locks)].mutex.ReaderUnlock();
    }
  }
  // What is updated between the two looks is sent newer than it need be.
  TANDEM_RETURN_IF_ERROR(Gather(wanted, create, out));
  return wanted.size();
}

uint32_t BucketedStorage::LocksOf(absl::Span<const uint64_t> ids) const {
  const uint32_t all = static_cast<uint32_t>((uint64_t{1} << (lock_mask_ + 1)) - 1);
  // So many ids need nearly all of them: hashing twice would cost more than the few that are taken for
  // nothing.
  if (ids.size() > 2 * kLocks) return all;
  uint32_t needed = 0;
  for (const uint64_t id : ids) needed |= uint32_t{1} << LockOfHash(Mix64(id));
  return needed;
}

void BucketedStorage::GatherRun(absl::Span<const uint64_t> ids, uint32_t first, float* out,
                                std::vector<uint32_t>* missing) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const uint32_t needed = LocksOf(ids);
  for (uint32_t locks = needed; locks != 0; locks &= locks - 1) {
    locks_[__builtin_ctz(locks)].mutex.ReaderLock();
  }
  // Rings, small enough that they do not push what was asked for out of the first-level cache.
  static_assert((kRing & (kRing - 1)) == 0 && kRing >= 3 * kBlock + kLinesAhead && kRing % kBlock == 0);
  uint64_t hashes[kRing];
  const Cell* lines[kRing];
  const char* rows[kRing];
  uint32_t beyond[kRing];  // ids whose cell, if any, is not in the line where it should be
  size_t beyond_begin = 0, beyond_end = 0;
  const size_t count = ids.size();
  const size_t embedding_bytes = layout_.embedding_bytes;
  const RowStore* const buckets = buckets_.data();
  const uint32_t bucket_mask = bucket_mask_;
  const RowAddress address(layout_);
  const auto store_of = [&](size_t i) -> const RowStore& {
    return buckets[static_cast<uint32_t>(hashes[i % kRing] >> 32) & bucket_mask];
  };
  const auto find_lines = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < std::min(end, count); ++i) {
      const uint64_t hash = hashes[i % kRing] = Mix64(ids[i]);
      const Cell* const line = lines[i % kRing] = store_of(i).index().Line(hash);
      __builtin_prefetch(line, 0, kPrefetchLocality);
    }
  };
  const auto take_row = [&](size_t i, const RowStore& store, const Cell* cell) {
    if (cell == nullptr) {
      rows[i % kRing] = nullptr;
      missing->push_back(first + static_cast<uint32_t>(i));
    } else {
      rows[i % kRing] = address.Of(store.chunks(), cell->slot());
      Prefetch(rows[i % kRing], embedding_bytes);
    }
  };
  const auto find_rows = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < std::min(end, count); ++i) {
      const Cell* cell;
      if (RowIndex::FindInLine(lines[i % kRing], ids[i], &cell)) {
        take_row(i, store_of(i), cell);
      } else {
        __builtin_prefetch(lines[i % kRing] + RowIndex::kLineCells, 0, kPrefetchLocality);
        beyond[beyond_end++ % kRing] = static_cast<uint32_t>(i);
      }
    }
  };
  // For those in blocks before `end`, whose next line has had time to come.
  const auto find_beyond = [&](size_t end) {
    for (; beyond_begin < beyond_end && beyond[beyond_begin % kRing] < end; ++beyond_begin) {
      const size_t i = beyond[beyond_begin % kRing];
      const RowStore& store = store_of(i);
      take_row(i, store, store.index().FindBeyond(lines[i % kRing], ids[i], hashes[i % kRing]));
    }
  };
  find_lines(0, 2 * kBlock + kLinesAhead);
  find_rows(0, 2 * kBlock);
  find_beyond(kBlock);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    find_lines(begin + 2 * kBlock + kLinesAhead, begin + 3 * kBlock + kLinesAhead);
    find_rows(begin + 2 * kBlock, begin + 3 * kBlock);
    find_beyond(begin + 2 * kBlock);
    LoadRows(layout_.dtype, absl::MakeConstSpan(rows + begin % kRing, std::min(kBlock, count - begin)), dim_,
             out + begin * dim_);
  }
  for (uint32_t locks = needed; locks != 0; locks &= locks - 1) {
    locks_[__builtin_ctz(locks)].mutex.ReaderUnlock();
  }
}

void BucketedStorage::InitialValues(uint64_t id, float* values) const {
  initializer_->Fill(seed_, id, values, dim_);
  if (layout_.f32()) return;
  std::vector<char> stored(layout_.embedding_bytes);
  char* const row = stored.data();
  StoreRows(layout_.dtype, absl::MakeConstSpan(&row, 1), dim_, values, nullptr);
  const char* const from = row;
  LoadRows(layout_.dtype, absl::MakeConstSpan(&from, 1), dim_, values);
}

void BucketedStorage::InitRow(char* row, const float* values) const {
  StoreRows(layout_.dtype, absl::MakeConstSpan(&row, 1), dim_, values, nullptr);
  optimizer_->InitState(values, layout_.state(row), dim_);
}

char* BucketedStorage::AddRow(RowStore* store, uint64_t id, uint64_t hash, uint32_t version) {
  num_rows_.fetch_add(1, std::memory_order_relaxed);
  return store->Insert(id, hash, version);
}

void BucketedStorage::FillMissing(absl::Span<const uint64_t> ids, absl::Span<const uint32_t> missing,
                                  bool create, float* out) {
  // Before taking a lock: initial values may be slow to compute and depend on nothing that it guards.
  for (const uint32_t i : missing) {
    float* const values = out + size_t{i} * dim_;
    if (OutOfRange(ids[i])) {
      std::fill_n(values, dim_, 0.0f);
    } else {
      InitialValues(ids[i], values);
    }
  }
  if (!create || dense_ || !admission_->at_pull()) return;
  // Rows are evicted by pushes, when every worker has pulled. Should nobody push, pulls still make no more
  // rows than twice the quota.
  const uint64_t most_rows = 2 * uint64_t{bucket_quota_};
  std::unique_ptr<Scratch> scratch = TakeScratch();
  scratch->ids.resize(missing.size());
  for (size_t k = 0; k < missing.size(); ++k) scratch->ids[k] = ids[missing[k]];
  scratch->grouping.Run(scratch->ids, lock_mask_ + 1);
  for (const Grouping::Group& group : scratch->grouping.groups()) {
    absl::MutexLock lock(&locks_[group.bucket].mutex);
    const PauseTimer timer(&longest_pause_ns_);
    for (const Grouping::Item& item :
         scratch->grouping.items().subspan(group.begin, group.end - group.begin)) {
      float* const values = out + size_t{missing[item.position]} * dim_;
      RowStore& store = buckets_[BucketOfHash(item.hash)];
      // Another call, or an earlier item of this one, may have made the row meanwhile.
      if (const char* const row = store.Find(item.id)) {
        LoadRows(layout_.dtype, absl::MakeConstSpan(&row, 1), dim_, values);
        continue;
      }
      if (store.size() >= most_rows) continue;
      InitRow(AddRow(&store, item.id, item.hash, static_cast<uint32_t>(clock())), values);
      admitted_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  GiveBackScratch(std::move(scratch));
}

}  // namespace tandem::ps
