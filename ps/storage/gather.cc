// Reading rows, and making them when they are first read.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/fixed_array.h"
#include "base/random.h"
#include "base/status.h"
#include "ps/storage/bucketed_storage.h"
#include "ps/storage/row_codec.h"

namespace tandem::ps {
namespace {

// Ids that are read under one taking of the locks: enough to make the locks cheap, few enough that writers
// wait for some ten microseconds.
constexpr size_t kRun = 1024;
static_assert(kRun <= kMaxLookup);

}  // namespace

absl::Status BucketedStorage::GatherAs(RowFormat::Out as, absl::Span<const uint64_t> ids, bool create,
                                       float* out) {
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  std::vector<uint32_t> missing;
  GatherPresent({as, layout_.dtype, dim_}, ids, reinterpret_cast<char*>(out), &missing);
  if (missing.empty()) return absl::OkStatus();
  if (tier_ != nullptr) return FillFromTier(ids, missing, create, out);
  FillMissing(ids, missing, create, out);
  return absl::OkStatus();
}

absl::Status BucketedStorage::GatherStored(absl::Span<const uint64_t> ids, bool create, char* out) {
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  std::vector<uint32_t> missing;
  GatherPresent({RowFormat::Out::kStored, layout_.dtype, dim_}, ids, out, &missing);
  if (missing.empty()) return absl::OkStatus();
  // As numbers, which are those that would be stored: writing them rounds nothing.
  std::vector<uint64_t> missing_ids;
  for (const uint32_t i : missing) missing_ids.push_back(ids[i]);
  std::vector<float> values(missing.size() * dim_);
  TANDEM_RETURN_IF_ERROR(Gather(missing_ids, create, values.data()));
  for (size_t k = 0; k < missing.size(); ++k) {
    char* const row = out + missing[k] * layout_.embedding_bytes;
    StoreRows(layout_.dtype, absl::MakeConstSpan(&row, 1), dim_, values.data() + k * dim_, nullptr);
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> BucketedStorage::GatherNewer(absl::Span<const uint64_t> ids, const uint32_t* cached,
                                                    uint64_t max_age, bool create, float* out,
                                                    uint8_t* sent) {
  std::fill_n(sent, (ids.size() + 7) / 8, uint8_t{0});
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  std::vector<uint64_t> wanted;
  std::vector<uint32_t> doubtful;  // with a copy and not in memory, but perhaps on disk
  std::vector<uint32_t> missing;   // in `wanted`
  // Of the ids of a run whose copies are too old to serve unseen: their cells are looked at.
  uint64_t old_ids[kRun];
  uint32_t positions[kRun];
  const Cell* cells[kRun];
  const char* rows[kRun];
  for (size_t first = 0; first < ids.size(); first += kRun) {
    const absl::Span<const uint64_t> run = ids.subspan(first, kRun);
    const uint32_t locks = LocksOf(run);
    LockShared(locks);
    const auto now = static_cast<uint32_t>(clock());
    size_t old = 0;
    for (size_t i = 0; i < run.size(); ++i) {
      const uint32_t age = now - cached[first + i];
      old_ids[old] = run[i];
      positions[old] = static_cast<uint32_t>(first + i);
      old += (cached[first + i] == 0) | (age > max_age) ? 1 : 0;
    }
    FindCells(indexes(), absl::MakeConstSpan(old_ids, old), cells);
    const RowAddress address = pool_.address();
    const size_t begin = wanted.size();
    for (size_t k = 0; k < old; ++k) {
      const size_t i = positions[k];
      // A row that is gone reads as its initial value again: its copy is older than that.
      if (cached[i] != 0 && cells[k] != nullptr && static_cast<int32_t>(cells[k]->version - cached[i]) <= 0) {
        continue;
      }
      sent[i / 8] |= static_cast<uint8_t>(1u << (i % 8));
      rows[wanted.size() - begin] = cells[k] == nullptr ? nullptr : address.Of(cells[k]->slot);
      if (cells[k] == nullptr) {
        missing.push_back(static_cast<uint32_t>(wanted.size()));
        if (tier_ != nullptr && cached[i] != 0) doubtful.push_back(static_cast<uint32_t>(i));
      }
      wanted.push_back(ids[i]);
    }
    LoadRows(layout_.dtype, absl::MakeConstSpan(rows, wanted.size() - begin), dim_, out + begin * dim_);
    UnlockShared(locks);
  }
  if (!doubtful.empty()) {
    TANDEM_RETURN_IF_ERROR(LookAgain(ids, cached, doubtful, sent));
    wanted.clear();
    for (size_t i = 0; i < ids.size(); ++i) {
      if ((sent[i / 8] >> (i % 8) & 1) != 0) wanted.push_back(ids[i]);
    }
    TANDEM_RETURN_IF_ERROR(Gather(wanted, create, out));
  } else if (!missing.empty()) {
    if (tier_ != nullptr) {
      TANDEM_RETURN_IF_ERROR(FillFromTier(wanted, missing, create, out));
    } else {
      FillMissing(wanted, missing, create, out);
    }
  }
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

void BucketedStorage::LockShared(uint32_t locks) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (; locks != 0; locks &= locks - 1) locks_[__builtin_ctz(locks)].ReaderLock();
}

bool BucketedStorage::TryLockShared(uint32_t locks) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (uint32_t left = locks; left != 0; left &= left - 1) {
    if (locks_[__builtin_ctz(left)].ReaderTryLock()) continue;
    UnlockShared(locks & ~left);
    return false;
  }
  return true;
}

void BucketedStorage::UnlockShared(uint32_t locks) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (; locks != 0; locks &= locks - 1) locks_[__builtin_ctz(locks)].ReaderUnlock();
}

void BucketedStorage::GatherPresent(const RowFormat& form, absl::Span<const uint64_t> ids, char* out,
                                    std::vector<uint32_t>* missing) const {
  for (size_t first = 0; first < ids.size(); first += kRun) {
    const absl::Span<const uint64_t> run = ids.subspan(first, kRun);
    char* const to = out + first * form.out_bytes();
    const uint32_t locks = LocksOf(run);
    if (TryLockShared(locks)) {
      GatherRows(indexes(), pool_.address(), run, form, to, static_cast<uint32_t>(first), missing);
      UnlockShared(locks);
    } else {
      GatherLockByLock(form, run, to, static_cast<uint32_t>(first), missing);
    }
  }
}

void BucketedStorage::GatherLockByLock(const RowFormat& form, absl::Span<const uint64_t> ids, char* out,
                                       uint32_t first, std::vector<uint32_t>* missing) const {
  // The ids by lock: those of lock l are the counts[l] from sorted[begins[l]] on.
  uint64_t sorted[kRun];
  uint16_t positions[kRun];
  uint32_t counts[kLocks] = {}, begins[kLocks] = {}, next[kLocks];
  for (const uint64_t id : ids) ++counts[LockOfHash(Mix64(id))];
  for (uint32_t l = 1; l < kLocks; ++l) begins[l] = begins[l - 1] + counts[l - 1];
  std::copy_n(begins, kLocks, next);
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t at = next[LockOfHash(Mix64(ids[i]))]++;
    sorted[at] = ids[i];
    positions[at] = static_cast<uint16_t>(i);
  }
  // Read in that order, and then copied to their places under no lock.
  const size_t bytes = form.out_bytes();
  const RowFormat nearby = {form.out == RowFormat::Out::kStored ? form.out : RowFormat::Out::kFloats, form.dtype,
                          form.dim};
  std::vector<char> rows(*std::max_element(counts, counts + kLocks) * bytes);
  std::vector<uint32_t> absent;  // in `sorted`
  const auto read_locked = [&](uint32_t l) {
    GatherRows(indexes(), pool_.address(), absl::MakeConstSpan(sorted + begins[l], counts[l]), nearby,
               rows.data(), begins[l], &absent);
  };
  const auto hand_out = [&](uint32_t l) {
    for (uint32_t k = 0; k < counts[l]; ++k) {
      std::memcpy(out + positions[begins[l] + k] * bytes, rows.data() + k * bytes, bytes);
    }
  };
  uint32_t busy = 0;
  for (uint32_t l = 0; l <= lock_mask_; ++l) {
    if (counts[l] == 0) continue;
    if (!TryLockShared(uint32_t{1} << l)) {
      busy |= uint32_t{1} << l;
      continue;
    }
    read_locked(l);
    UnlockShared(uint32_t{1} << l);
    hand_out(l);
  }
  for (; busy != 0; busy &= busy - 1) {
    const uint32_t l = __builtin_ctz(busy);
    {
      const FairLock::Reader lock(&locks_[l]);
      read_locked(l);
    }
    hand_out(l);
  }
  for (uint32_t& i : absent) i = first + positions[i];
  std::sort(absent.begin(), absent.end());
  missing->insert(missing->end(), absent.begin(), absent.end());
}

void BucketedStorage::InitialValues(uint64_t id, float* values) const {
  initializer_->Fill(seed_, id, values, dim_);
  if (layout_.f32()) return;
  absl::FixedArray<uint16_t, 512> stored(dim_);  // what is not f32 has 16 bits
  char* const row = reinterpret_cast<char*>(stored.data());
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
  scratch->over.clear();
  pool_.Prepare(static_cast<uint32_t>(missing.size()));
  for (const Grouping::Group& group : scratch->grouping.groups()) {
    const FairLock::Writer lock(&locks_[group.bucket]);
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
      if (store.index().WantedBytes() > 0) scratch->over.push_back(BucketOfHash(item.hash));
    }
  }
  PrepareGrowth(&scratch->over);
  ReleaseScratch(std::move(scratch));
}

void BucketedStorage::PrepareGrowth(std::vector<uint32_t>* buckets) {
  for (const uint32_t bucket : *buckets) {
    RowStore& store = buckets_[bucket];
    size_t bytes;
    {
      const FairLock::Reader lock(&LockOfBucket(bucket));
      bytes = store.index().WantedBytes();
    }
    if (bytes == 0) continue;
    Arena::Block memory = arena_.AllocateReady(bytes);
    const FairLock::Writer lock(&LockOfBucket(bucket));
    memory = store.index().TakeSpare(std::move(memory));
  }
  buckets->clear();
}

}  // namespace tandem::ps
