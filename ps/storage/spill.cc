// The way of rows to disk and back; the protocol is told in bucketed_storage.h.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status.h"
#include "base/ticks.h"
#include "ps/storage/bucketed_storage.h"
#include "ps/storage/row_codec.h"

namespace tandem::ps {
namespace {

constexpr uint32_t kNotAsked = ~uint32_t{0};
// Items whose rows are read from the tier in one call, if the locks they need allow it.
constexpr size_t kAskedAtOnce = 1024;
// Rows that are copied, put and erased in one go: locks are held for some ten microseconds.
constexpr size_t kSpilledAtOnce = 256;
// Rows that came back are spared for one to two times so many updates of the table, or until a quarter to
// half of what the bucket may hold has come after them.
constexpr uint32_t kSparedUpdates = 32;
// After a failure the disk is left alone so long.
constexpr std::chrono::nanoseconds kSpillPause = std::chrono::seconds(1);

}  // namespace

absl::Status BucketedStorage::Damage(const absl::Status& cause) const {
  absl::MutexLock lock(&damage_mutex_);
  if (damage_.ok() && !cause.ok()) {
    damage_ = absl::DataLossError(absl::StrCat(
        cause.message(), ". An update of rows that could not be read is lost: load a checkpoint"));
    damaged_.store(true, std::memory_order_release);
    LogError(damage_.message());
  }
  return damage_;
}

void BucketedStorage::SortByLock(std::vector<Grouping::Item>* items) const {
  // Items of a lock stay in their order: in it gradients are added and ids counted by admission.
  std::stable_sort(items->begin(), items->end(), [this](const Grouping::Item& a, const Grouping::Item& b) {
    return LockOfHash(a.hash) < LockOfHash(b.hash);
  });
}

template <class F>
void BucketedStorage::ForEachLockOf(absl::Span<const Grouping::Item> run, const F& f) const {
  for (size_t begin = 0, end = 0; begin < run.size(); begin = end) {
    const uint32_t lock = LockOfHash(run[begin].hash);
    for (end = begin + 1; end < run.size() && LockOfHash(run[end].hash) == lock;) ++end;
    f(begin, end);
  }
}

template <class F>
absl::Status BucketedStorage::ForEachRunBehindDoors(absl::Span<const Grouping::Item> items,
                                                    const F& f) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (size_t begin = 0, end = 0; begin < items.size(); begin = end) {
    uint32_t doors = 0;
    while (end < items.size()) {
      const uint32_t lock = LockOfHash(items[end].hash);
      size_t after = end + 1;
      while (after < items.size() && LockOfHash(items[after].hash) == lock) ++after;
      if (end > begin && after - begin > kAskedAtOnce) break;
      doors |= uint32_t{1} << lock;
      end = after;
    }
    for (uint32_t d = doors; d != 0; d &= d - 1) doors_[__builtin_ctz(d)].mutex.ReaderLock();
    const absl::Status status = f(items.subspan(begin, end - begin));
    for (uint32_t d = doors; d != 0; d &= d - 1) doors_[__builtin_ctz(d)].mutex.ReaderUnlock();
    TANDEM_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status BucketedStorage::AskTier(absl::Span<const Grouping::Item> run, Scratch* scratch) const {
  scratch->cold_at.assign(run.size(), kNotAsked);
  scratch->cold_keys.clear();
  for (size_t i = 0; i < run.size(); ++i) {
    const uint32_t bucket = BucketOfHash(run[i].hash);
    // Grows only under the door alone: 0 stays 0. New ids seldom get further than this.
    if (borders_[bucket].cold.load(std::memory_order_relaxed) == 0) continue;
    if (!borders_[bucket].left.MayContain(run[i].id)) continue;
    scratch->cold_at[i] = static_cast<uint32_t>(scratch->cold_keys.size());
    scratch->cold_keys.push_back({bucket, run[i].id});
  }
  if (scratch->cold_keys.empty()) return absl::OkStatus();
  scratch->cold_found.resize(scratch->cold_keys.size());
  scratch->cold_rows.resize(scratch->cold_keys.size() * cold_row_bytes_);
  return tier_->Get(scratch->cold_keys, cold_row_bytes_, scratch->cold_rows.data(),
                    scratch->cold_found.data());
}

const char* BucketedStorage::Cold(const Scratch& scratch, size_t i) const {
  const uint32_t at = scratch.cold_at[i];
  if (at == kNotAsked || scratch.cold_found[at] == 0) return nullptr;
  return scratch.cold_rows.data() + size_t{at} * cold_row_bytes_;
}

char* BucketedStorage::BringBack(const Grouping::Item& item, const char* cold) {
  const uint32_t bucket = BucketOfHash(item.hash);
  uint32_t version;
  std::memcpy(&version, cold, sizeof(version));
  char* const row = AddRow(&buckets_[bucket], item.id, item.hash, version);
  std::memcpy(row, cold + sizeof(version), layout_.row_bytes);
  borders_[bucket].cold.fetch_sub(1, std::memory_order_relaxed);
  cold_rows_.fetch_sub(1, std::memory_order_relaxed);
  spill_reads_.fetch_add(1, std::memory_order_relaxed);
  NoteArrival(bucket, item.id);
  return row;
}

void BucketedStorage::NoteArrival(uint32_t bucket, uint64_t id) {
  Border& border = borders_[bucket];
  const auto now = static_cast<uint32_t>(clock());
  if (now - border.younger_since > kSparedUpdates || border.younger.size() >= bucket_quota_ / 4) {
    border.young.swap(border.younger);
    border.younger.clear();
    border.younger_since = now;
  }
  border.younger.insert(id);
}

absl::Status BucketedStorage::FillFromTier(absl::Span<const uint64_t> ids, absl::Span<const uint32_t> missing,
                                           bool create, float* out) {
  std::unique_ptr<Scratch> scratch = TakeScratch();
  const auto give_back = absl::MakeCleanup([&] { ReleaseScratch(std::move(scratch)); });
  scratch->over.clear();
  scratch->absent.clear();
  for (const uint32_t i : missing) scratch->absent.push_back({ids[i], Mix64(ids[i]), i});
  SortByLock(&scratch->absent);
  // As in tables without a disk, pulls do not evict before a bucket has twice its quota.
  const uint64_t most_rows = 2 * uint64_t{bucket_quota_};
  const auto fill = [&](const Grouping::Item& item, const char* cold) {
    float* const values = out + size_t{item.position} * dim_;
    RowStore& store = buckets_[BucketOfHash(item.hash)];
    const char* row = store.Find(item.id);  // another call may have brought or made it meanwhile
    if (row == nullptr && cold != nullptr) row = create ? BringBack(item, cold) : cold + sizeof(uint32_t);
    if (row != nullptr) {
      LoadRows(layout_.dtype, absl::MakeConstSpan(&row, 1), dim_, values);
    } else if (create && admission_->at_pull()) {
      InitRow(AddRow(&store, item.id, item.hash, static_cast<uint32_t>(clock())), values);
      NoteArrival(BucketOfHash(item.hash), item.id);
      admitted_.fetch_add(1, std::memory_order_relaxed);
    }
    if (create && store.size() > most_rows) scratch->over.push_back(BucketOfHash(item.hash));
  };
  TANDEM_RETURN_IF_ERROR(ForEachRunBehindDoors(scratch->absent, [&](absl::Span<const Grouping::Item> run) {
    TANDEM_RETURN_IF_ERROR(AskTier(run, scratch.get()));
    // Before taking a lock: initial values may be slow to compute.
    for (size_t i = 0; i < run.size(); ++i) {
      if (Cold(*scratch, i) == nullptr) InitialValues(run[i].id, out + size_t{run[i].position} * dim_);
    }
    ForEachLockOf(run, [&](size_t begin, size_t end) {
      FairLock& lock_of_run = locks_[LockOfHash(run[begin].hash)];
      if (create) {
        const FairLock::Writer lock(&lock_of_run);
        const PauseTimer timer(&longest_pause_ns_);
        for (size_t i = begin; i < end; ++i) fill(run[i], Cold(*scratch, i));
      } else {
        const FairLock::Reader lock(&lock_of_run);
        for (size_t i = begin; i < end; ++i) fill(run[i], Cold(*scratch, i));
      }
    });
    return absl::OkStatus();
  }));
  SpillOver(&scratch->over, static_cast<uint32_t>(clock()), most_rows);
  return absl::OkStatus();
}

absl::Status BucketedStorage::LookAgain(absl::Span<const uint64_t> ids, const uint32_t* cached,
                                        absl::Span<const uint32_t> doubtful, uint8_t* sent) {
  std::unique_ptr<Scratch> scratch = TakeScratch();
  const auto give_back = absl::MakeCleanup([&] { ReleaseScratch(std::move(scratch)); });
  scratch->absent.clear();
  for (const uint32_t i : doubtful) scratch->absent.push_back({ids[i], Mix64(ids[i]), i});
  SortByLock(&scratch->absent);
  return ForEachRunBehindDoors(scratch->absent, [&](absl::Span<const Grouping::Item> run) {
    TANDEM_RETURN_IF_ERROR(AskTier(run, scratch.get()));
    ForEachLockOf(run, [&](size_t begin, size_t end) {
      const FairLock::Reader lock(&locks_[LockOfHash(run[begin].hash)]);
      for (size_t i = begin; i < end; ++i) {
        const Cell* const cell = std::as_const(buckets_[BucketOfHash(run[i].hash)]).index().Find(run[i].id);
        const char* const cold = Cold(*scratch, i);
        if (cell == nullptr && cold == nullptr) continue;  // gone: as in NeedsNewer
        uint32_t version;
        std::memcpy(&version, cell != nullptr ? reinterpret_cast<const char*>(&cell->version) : cold,
                    sizeof(version));
        const uint32_t position = run[i].position;
        if (static_cast<int32_t>(version - cached[position]) > 0) continue;
        sent[position / 8] &= static_cast<uint8_t>(~(1u << (position % 8)));
      }
    });
    return absl::OkStatus();
  });
}

absl::StatusOr<uint64_t> BucketedStorage::ApplyAbsent(const float* gradients, const ApplyOptions& options,
                                                      uint64_t time, float learning_rate_factor,
                                                      Scratch* scratch) {
  std::vector<Grouping::Item> items;
  items.swap(scratch->absent);
  SortByLock(&items);
  const auto now = static_cast<uint32_t>(time);
  uint64_t skipped = 0;
  const absl::Status status = ForEachRunBehindDoors(items, [&](absl::Span<const Grouping::Item> run) {
    TANDEM_RETURN_IF_ERROR(AskTier(run, scratch));
    ForEachLockOf(run, [&](size_t begin, size_t end) {
      const FairLock::Writer lock(&locks_[LockOfHash(run[begin].hash)]);
      const PauseTimer timer(&longest_pause_ns_);
      for (size_t i = begin; i < end; ++i) {
        const char* const cold = Cold(*scratch, i);
        if (cold == nullptr || buckets_[BucketOfHash(run[i].hash)].Find(run[i].id) != nullptr) continue;
        BringBack(run[i], cold);
      }
      const absl::Span<const Grouping::Item> some = run.subspan(begin, end - begin);
      if (!admission_->at_pull()) AdmitItems(some, time, scratch);
      skipped += CollectUpdates(some, now, gradients, options.row_factors, scratch);
      RunOptimizer(now, learning_rate_factor, scratch);
      for (const Grouping::Item& item : some) {
        const uint32_t bucket = BucketOfHash(item.hash);
        if (buckets_[bucket].size() > bucket_quota_) scratch->over.push_back(bucket);
      }
    });
    return absl::OkStatus();
  });
  scratch->absent = std::move(items);  // its memory
  scratch->absent.clear();
  if (!status.ok()) return Damage(status);
  return skipped;
}

absl::Status BucketedStorage::RestoreOverTier(uint64_t id, const float* floats, const RowHistory& history) {
  const uint64_t hash = Mix64(id);
  const uint32_t bucket = BucketOfHash(hash);
  bool over;
  {
    absl::ReaderMutexLock door(&DoorOfBucket(bucket));
    uint8_t found = 0;
    if (borders_[bucket].cold.load(std::memory_order_relaxed) > 0 && borders_[bucket].left.MayContain(id)) {
      std::vector<char> row(cold_row_bytes_);
      const ColdTier::Key key = {bucket, id};
      TANDEM_RETURN_IF_ERROR(tier_->Get({&key, 1}, cold_row_bytes_, row.data(), &found));
    }
    const FairLock::Writer lock(&LockOfBucket(bucket));
    if (found != 0 && buckets_[bucket].Find(id) == nullptr) {
      borders_[bucket].cold.fetch_sub(1, std::memory_order_relaxed);
      cold_rows_.fetch_sub(1, std::memory_order_relaxed);
    }
    PutRow(bucket, id, hash, floats, history);
    over = buckets_[bucket].size() > bucket_quota_;
  }
  if (over) SpillBucket(bucket, static_cast<uint32_t>(clock()), bucket_quota_);
  return absl::OkStatus();
}

void BucketedStorage::SpillOver(std::vector<uint32_t>* buckets, uint32_t now, uint64_t most) {
  std::sort(buckets->begin(), buckets->end());
  buckets->erase(std::unique(buckets->begin(), buckets->end()), buckets->end());
  for (const uint32_t bucket : *buckets) SpillBucket(bucket, now, most);
  buckets->clear();
}

void BucketedStorage::SpillBucket(uint32_t bucket, uint32_t now, uint64_t most) {
  if (SteadyNanoseconds() < next_spill_ns_.load(std::memory_order_relaxed)) return;
  absl::MutexLock door(&DoorOfBucket(bucket));
  FairLock& lock_of_bucket = LockOfBucket(bucket);
  RowStore& store = buckets_[bucket];
  std::vector<uint64_t> leaving;
  {
    const FairLock::Reader lock(&lock_of_bucket);
    if (store.size() <= most) return;  // another call was here first
    leaving = LowestPriority(bucket, now);
  }
  std::sort(leaving.begin(), leaving.end());
  std::vector<char> copies(std::min(leaving.size(), kSpilledAtOnce) * cold_row_bytes_);
  for (size_t first = 0; first < leaving.size(); first += kSpilledAtOnce) {
    const absl::Span<const uint64_t> ids = absl::MakeConstSpan(leaving).subspan(first, kSpilledAtOnce);
    {
      const FairLock::Reader lock(&lock_of_bucket);
      for (size_t i = 0; i < ids.size(); ++i) {
        const Cell* const cell = std::as_const(store).index().Find(ids[i]);
        TANDEM_CHECK(cell != nullptr);  // nobody else is behind this door
        char* const copy = copies.data() + i * cold_row_bytes_;
        std::memcpy(copy, &cell->version, sizeof(cell->version));
        std::memcpy(copy + sizeof(cell->version), store.RowAt(cell->slot), layout_.row_bytes);
      }
    }
    const absl::Status put = tier_->Put(bucket, ids, cold_row_bytes_, copies.data());
    NoteSpilled(put);
    if (!put.ok()) return;
    spill_writes_.fetch_add(ids.size(), std::memory_order_relaxed);
    const FairLock::Writer lock(&lock_of_bucket);
    const PauseTimer timer(&longest_pause_ns_);
    uint32_t left = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const Cell* const cell = std::as_const(store).index().Find(ids[i]);
      const char* const copy = copies.data() + i * cold_row_bytes_;
      if (std::memcmp(copy, &cell->version, sizeof(cell->version)) != 0 ||
          std::memcmp(copy + sizeof(cell->version), store.RowAt(cell->slot), layout_.row_bytes) != 0) {
        continue;  // updated since: not cold after all
      }
      store.Erase(ids[i]);
      borders_[bucket].left.Add(ids[i]);
      ++left;
    }
    num_rows_.fetch_sub(left, std::memory_order_relaxed);
    cold_rows_.fetch_add(left, std::memory_order_relaxed);
    borders_[bucket].cold.fetch_add(left, std::memory_order_relaxed);
    if (store.free_slots() > store.size()) store.Compact();
  }
}

void BucketedStorage::NoteSpilled(const absl::Status& status) {
  if (status.ok()) {
    if (next_spill_ns_.load(std::memory_order_relaxed) != 0 && next_spill_ns_.exchange(0) != 0) {
      LogInfo(absl::StrCat("table '", name_, "': cold rows go to disk again"));
    }
    return;
  }
  failed_spills_.fetch_add(1, std::memory_order_relaxed);
  const bool first = next_spill_ns_.exchange(SteadyNanoseconds() + kSpillPause.count()) == 0;
  if (first) {
    LogWarning(absl::StrCat(status.message(),
                            ". Nothing is lost: the table's rows stay in memory, beyond its "
                            "byte_budget, until they can be written; tried once a second"));
  }
}

}  // namespace tandem::ps
