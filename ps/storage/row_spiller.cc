// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/row_spiller.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status.h"
#include "base/ticks.h"
#include "ps/storage/fair_lock.h"
#include "ps/storage/row_codec.h"

namespace tandem::ps {
namespace {

using Cell = Buckets::Cell;

constexpr uint32_t kNotAsked = ~uint32_t{0};
// The number of items whose rows are read from the tier in one call, if their locks allow it.
constexpr size_t kAskedAtOnce = 1024;
// The number of rows that are copied, put and erased at a time, so that locks are held for some ten
// microseconds.
constexpr size_t kSpilledAtOnce = 256;
// The time after a failed write during which the disk is not written again.
constexpr std::chrono::nanoseconds kSpillPause = std::chrono::seconds(1);

}  // namespace

RowSpiller::RowSpiller(std::string table, Buckets* buckets, std::unique_ptr<ColdTier> tier,
                       AdmissionFilter* admission, RowCreator* creator, RowUpdater* updater,
                       RowEvictor* evictor, ScratchPool* scratch_pool)
    : name_(std::move(table)),
      buckets_(buckets),
      tier_(std::move(tier)),
      admission_(admission),
      creator_(creator),
      updater_(updater),
      evictor_(evictor),
      scratch_pool_(scratch_pool),
      cold_row_bytes_(sizeof(uint32_t) + buckets->layout().row_bytes),
      tier_locks_(std::make_unique<TierLock[]>(buckets->num_locks())),
      states_(std::make_unique<BucketState[]>(buckets->num_buckets())) {
  for (uint32_t b = 0; b < buckets->num_buckets(); ++b) states_[b].left = SeenFilter(buckets->quota());
}

absl::Status RowSpiller::Damage(const absl::Status& cause) const {
  absl::MutexLock lock(&damage_mutex_);
  if (damage_.ok() && !cause.ok()) {
    damage_ = absl::DataLossError(absl::StrCat(
        cause.message(), ". An update of rows that could not be read is lost: load a checkpoint"));
    damaged_.store(true, std::memory_order_release);
    LogError(damage_.message());
  }
  return damage_;
}

void RowSpiller::SortByLock(std::vector<Grouping::Item>* items) const {
  // Items of a lock stay in their order, in which gradients are added and admission counts ids.
  std::stable_sort(items->begin(), items->end(), [this](const Grouping::Item& a, const Grouping::Item& b) {
    return buckets_->LockOfHash(a.hash) < buckets_->LockOfHash(b.hash);
  });
}

template <class F>
void RowSpiller::ForEachLockOf(absl::Span<const Grouping::Item> run, const F& f) const {
  for (size_t begin = 0, end = 0; begin < run.size(); begin = end) {
    const uint32_t lock = buckets_->LockOfHash(run[begin].hash);
    for (end = begin + 1; end < run.size() && buckets_->LockOfHash(run[end].hash) == lock;) ++end;
    f(begin, end);
  }
}

template <class F>
absl::Status RowSpiller::ForEachRun(absl::Span<const Grouping::Item> items,
                                    const F& f) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (size_t begin = 0, end = 0; begin < items.size(); begin = end) {
    uint32_t locks = 0;
    while (end < items.size()) {
      const uint32_t lock = buckets_->LockOfHash(items[end].hash);
      size_t after = end + 1;
      while (after < items.size() && buckets_->LockOfHash(items[after].hash) == lock) ++after;
      if (end > begin && after - begin > kAskedAtOnce) break;
      locks |= uint32_t{1} << lock;
      end = after;
    }
    for (uint32_t l = locks; l != 0; l &= l - 1) tier_locks_[__builtin_ctz(l)].mutex.ReaderLock();
    const absl::Status status = f(items.subspan(begin, end - begin));
    for (uint32_t l = locks; l != 0; l &= l - 1) tier_locks_[__builtin_ctz(l)].mutex.ReaderUnlock();
    TANDEM_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status RowSpiller::ReadTier(absl::Span<const Grouping::Item> run, Scratch* scratch) const {
  scratch->cold_at.assign(run.size(), kNotAsked);
  scratch->cold_keys.clear();
  for (size_t i = 0; i < run.size(); ++i) {
    const uint32_t bucket = buckets_->BucketOfHash(run[i].hash);
    // The count grows only with the tier lock held exclusively, so 0 stays 0. New ids seldom get further than
    // this.
    if (states_[bucket].cold.load(std::memory_order_relaxed) == 0) continue;
    if (!states_[bucket].left.MayContain(run[i].id)) continue;
    scratch->cold_at[i] = static_cast<uint32_t>(scratch->cold_keys.size());
    scratch->cold_keys.push_back({bucket, run[i].id});
  }
  if (scratch->cold_keys.empty()) return absl::OkStatus();
  scratch->cold_found.resize(scratch->cold_keys.size());
  scratch->cold_rows.resize(scratch->cold_keys.size() * cold_row_bytes_);
  return tier_->Get(scratch->cold_keys, cold_row_bytes_, scratch->cold_rows.data(),
                    scratch->cold_found.data());
}

const char* RowSpiller::Cold(const Scratch& scratch, size_t i) const {
  const uint32_t at = scratch.cold_at[i];
  if (at == kNotAsked || scratch.cold_found[at] == 0) return nullptr;
  return scratch.cold_rows.data() + size_t{at} * cold_row_bytes_;
}

char* RowSpiller::BringBack(const Grouping::Item& item, const char* cold) {
  const uint32_t bucket = buckets_->BucketOfHash(item.hash);
  uint32_t version;
  std::memcpy(&version, cold, sizeof(version));
  char* const row = buckets_->AddRow(&buckets_->store(bucket), item.id, item.hash, version);
  std::memcpy(row, cold + sizeof(version), buckets_->layout().row_bytes);
  states_[bucket].cold.fetch_sub(1, std::memory_order_relaxed);
  cold_rows_.fetch_sub(1, std::memory_order_relaxed);
  spill_reads_.fetch_add(1, std::memory_order_relaxed);
  NoteArrival(bucket, item.id);
  return row;
}

void RowSpiller::NoteArrival(uint32_t bucket, uint64_t id) {
  states_[bucket].recent.Add(id, static_cast<uint32_t>(buckets_->clock()), buckets_->quota());
}

absl::Status RowSpiller::FillMissing(absl::Span<const uint64_t> ids, absl::Span<const uint32_t> missing,
                                     bool create, float* out) {
  std::unique_ptr<Scratch> scratch = scratch_pool_->Take();
  const auto release = absl::MakeCleanup([&] { scratch_pool_->Release(std::move(scratch)); });
  scratch->over.clear();
  scratch->absent.clear();
  for (const uint32_t i : missing) scratch->absent.push_back({ids[i], Mix64(ids[i]), i});
  SortByLock(&scratch->absent);
  const RowLayout& layout = buckets_->layout();
  // As in tables that do not spill, pulls do not evict before a bucket has twice its quota.
  const uint64_t most_rows = 2 * uint64_t{buckets_->quota()};
  // `initial`: the row's initial values, if it is not in the tier.
  const auto fill = [&](const Grouping::Item& item, const char* cold, const float* initial) {
    float* const values = out + size_t{item.position} * layout.dim;
    const uint32_t bucket = buckets_->BucketOfHash(item.hash);
    RowStore& store = buckets_->store(bucket);
    const char* row = store.Find(item.id);  // another call may have brought it back or created it meanwhile
    if (row == nullptr && cold != nullptr) row = create ? BringBack(item, cold) : cold + sizeof(uint32_t);
    if (row != nullptr) {
      LoadRows(layout.dtype, absl::MakeConstSpan(&row, 1), layout.dim, values);
    } else if (create && admission_->at_pull()) {
      creator_->AdmitRow(&store, item.id, item.hash, static_cast<uint32_t>(buckets_->clock()), initial);
      NoteArrival(bucket, item.id);
    }
    if (create && store.size() > most_rows) scratch->over.push_back(bucket);
  };
  TANDEM_RETURN_IF_ERROR(ForEachRun(scratch->absent, [&](absl::Span<const Grouping::Item> run) {
    TANDEM_RETURN_IF_ERROR(ReadTier(run, scratch.get()));
    // This happens before a lock is taken: initial values may be slow to compute.
    // They are not read back from `out`: a client may be able to write there (rpc/shm).
    const std::unique_ptr<float[]> values(new float[run.size() * layout.dim]);
    const auto initial = [&](size_t i) { return values.get() + i * layout.dim; };
    for (size_t i = 0; i < run.size(); ++i) {
      if (Cold(*scratch, i) != nullptr) continue;
      creator_->InitialValues(run[i].id, initial(i));
      std::copy_n(initial(i), layout.dim, out + size_t{run[i].position} * layout.dim);
    }
    ForEachLockOf(run, [&](size_t begin, size_t end) {
      FairLock& lock_of_run = buckets_->lock(buckets_->LockOfHash(run[begin].hash));
      if (create) {
        const FairLock::Writer lock(&lock_of_run);
        const LongestTime::Timer timer(&buckets_->longest_pause());
        for (size_t i = begin; i < end; ++i) fill(run[i], Cold(*scratch, i), initial(i));
      } else {
        const FairLock::Reader lock(&lock_of_run);
        for (size_t i = begin; i < end; ++i) fill(run[i], Cold(*scratch, i), initial(i));
      }
    });
    return absl::OkStatus();
  }));
  SpillOver(&scratch->over, static_cast<uint32_t>(buckets_->clock()), most_rows);
  return absl::OkStatus();
}

absl::Status RowSpiller::ClearCurrent(absl::Span<const uint64_t> ids, const uint32_t* cached,
                                      absl::Span<const uint32_t> doubtful, uint8_t* sent) {
  std::unique_ptr<Scratch> scratch = scratch_pool_->Take();
  const auto release = absl::MakeCleanup([&] { scratch_pool_->Release(std::move(scratch)); });
  scratch->absent.clear();
  for (const uint32_t i : doubtful) scratch->absent.push_back({ids[i], Mix64(ids[i]), i});
  SortByLock(&scratch->absent);
  return ForEachRun(scratch->absent, [&](absl::Span<const Grouping::Item> run) {
    TANDEM_RETURN_IF_ERROR(ReadTier(run, scratch.get()));
    ForEachLockOf(run, [&](size_t begin, size_t end) {
      const FairLock::Reader lock(&buckets_->lock(buckets_->LockOfHash(run[begin].hash)));
      for (size_t i = begin; i < end; ++i) {
        const RowStore& store = buckets_->store(buckets_->BucketOfHash(run[i].hash));
        const Cell* const cell = store.index().Find(run[i].id);
        const char* const cold = Cold(*scratch, i);
        if (cell == nullptr && cold == nullptr) continue;  // absent: as in RowGatherer::GatherNewer
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

absl::StatusOr<uint64_t> RowSpiller::ApplyAbsent(const UpdateArguments& update, Scratch* scratch) {
  std::vector<Grouping::Item> items;
  items.swap(scratch->absent);
  SortByLock(&items);
  uint64_t skipped = 0;
  const absl::Status status = ForEachRun(items, [&](absl::Span<const Grouping::Item> run) {
    TANDEM_RETURN_IF_ERROR(ReadTier(run, scratch));
    ForEachLockOf(run, [&](size_t begin, size_t end) {
      const FairLock::Writer lock(&buckets_->lock(buckets_->LockOfHash(run[begin].hash)));
      const LongestTime::Timer timer(&buckets_->longest_pause());
      for (size_t i = begin; i < end; ++i) {
        const char* const cold = Cold(*scratch, i);
        if (cold == nullptr) continue;
        if (buckets_->store(buckets_->BucketOfHash(run[i].hash)).Find(run[i].id) != nullptr) continue;
        BringBack(run[i], cold);
      }
      const absl::Span<const Grouping::Item> some = run.subspan(begin, end - begin);
      skipped += updater_->UpdateLocked(some, update, /*admit=*/!admission_->at_pull(), scratch);
      for (const Grouping::Item& item : some) {
        const uint32_t bucket = buckets_->BucketOfHash(item.hash);
        if (buckets_->store(bucket).size() > buckets_->quota()) scratch->over.push_back(bucket);
      }
    });
    return absl::OkStatus();
  });
  scratch->absent = std::move(items);  // keeps its memory
  scratch->absent.clear();
  if (!status.ok()) return Damage(status);
  return skipped;
}

absl::Status RowSpiller::ReadRows(absl::Span<const uint64_t> ids, absl::Span<const uint32_t> missing,
                                  float* out, uint8_t* exists) {
  std::unique_ptr<Scratch> scratch = scratch_pool_->Take();
  const auto release = absl::MakeCleanup([&] { scratch_pool_->Release(std::move(scratch)); });
  scratch->absent.clear();
  for (const uint32_t i : missing) scratch->absent.push_back({ids[i], Mix64(ids[i]), i});
  SortByLock(&scratch->absent);
  const size_t floats = buckets_->layout().row_floats();
  return ForEachRun(scratch->absent, [&](absl::Span<const Grouping::Item> run) {
    TANDEM_RETURN_IF_ERROR(ReadTier(run, scratch.get()));
    ForEachLockOf(run, [&](size_t begin, size_t end) {
      const FairLock::Reader lock(&buckets_->lock(buckets_->LockOfHash(run[begin].hash)));
      for (size_t i = begin; i < end; ++i) {
        const Buckets& buckets = *buckets_;
        const char* row = buckets.store(buckets.BucketOfHash(run[i].hash)).Find(run[i].id);
        const char* const cold = Cold(*scratch, i);
        if (row == nullptr && cold != nullptr) row = cold + sizeof(uint32_t);
        if (row == nullptr) continue;
        buckets.ReadRow(row, out + run[i].position * floats);
        exists[run[i].position] = 1;
      }
    });
    return absl::OkStatus();
  });
}

absl::Status RowSpiller::Restore(uint64_t id, const float* floats, RowHistory history, bool keep_count) {
  const uint64_t hash = Mix64(id);
  const uint32_t bucket = buckets_->BucketOfHash(hash);
  bool over;
  {
    absl::ReaderMutexLock tier_lock(&TierLockOf(bucket));
    uint8_t found = 0;
    std::vector<char> cold_row;  // [version: u32 | row]
    if (states_[bucket].cold.load(std::memory_order_relaxed) > 0 && states_[bucket].left.MayContain(id)) {
      cold_row.resize(cold_row_bytes_);
      const ColdTier::Key key = {bucket, id};
      TANDEM_RETURN_IF_ERROR(tier_->Get({&key, 1}, cold_row_bytes_, cold_row.data(), &found));
      if (found != 0 && keep_count) {
        history.count = buckets_->layout().count(cold_row.data() + sizeof(uint32_t));
      }
    }
    const FairLock::Writer lock(&buckets_->LockOfBucket(bucket));
    const char* const in_memory = std::as_const(*buckets_).store(bucket).Find(id);
    if (found != 0 && in_memory == nullptr) {
      uint32_t version;
      std::memcpy(&version, cold_row.data(), sizeof(version));
      buckets_->cut().Keep(bucket, id, version, cold_row.data() + sizeof(version));
    } else {
      buckets_->KeepRow(bucket, id);
    }
    if (in_memory != nullptr && keep_count) history.count = buckets_->layout().count(in_memory);
    if (found != 0 && in_memory == nullptr) {
      states_[bucket].cold.fetch_sub(1, std::memory_order_relaxed);
      cold_rows_.fetch_sub(1, std::memory_order_relaxed);
    }
    buckets_->PutRow(bucket, id, hash, floats, history);
    over = buckets_->store(bucket).size() > buckets_->quota();
  }
  if (over) SpillBucket(bucket, static_cast<uint32_t>(buckets_->clock()), buckets_->quota());
  return absl::OkStatus();
}

absl::StatusOr<bool> RowSpiller::VisitRows(uint32_t bucket, uint64_t first_id, size_t limit,
                                           TableStorage::RowVisitor visit) {
  absl::ReaderMutexLock tier_lock(&TierLockOf(bucket));
  const FairLock::Reader lock(&buckets_->LockOfBucket(bucket));
  const RowLayout& layout = buckets_->layout();
  std::vector<float> floats(layout.row_floats());
  size_t visited = 0;
  // Returns false, and visits nothing, once the limit is reached.
  const auto visit_one = [&](uint64_t id, const char* row, uint32_t version) {
    if (visited == limit) return false;
    ++visited;
    buckets_->ReadRow(row, floats.data());
    visit(id, floats.data(), {version, layout.count(row)});
    return true;
  };
  // One row more than the limit shows whether there are more.
  const size_t one_more = limit + (limit < std::numeric_limits<size_t>::max() ? 1 : 0);
  const std::vector<Buckets::StoredRow> in_memory = buckets_->SortedRows(bucket, first_id, one_more);
  auto next = in_memory.begin();
  bool more = false;
  const uint32_t cold = states_[bucket].cold.load(std::memory_order_relaxed);
  if (cold > 0) {
    uint32_t visited_cold = 0;
    std::vector<float> aligned((cold_row_bytes_ + sizeof(float) - 1) / sizeof(float));
    const auto* const copy = reinterpret_cast<const char*>(aligned.data());
    const auto visit_cold = [&](uint64_t id, const char* row) {
      for (; next != in_memory.end() && next->id < id; ++next) {
        more = !visit_one(next->id, next->row, next->version);
        if (more) return false;
      }
      if (next != in_memory.end() && next->id == id) return true;  // superseded
      std::memcpy(aligned.data(), row, cold_row_bytes_);
      uint32_t version;
      std::memcpy(&version, copy, sizeof(version));
      more = !visit_one(id, copy + sizeof(version), version);
      ++visited_cold;
      return !more;
    };
    TANDEM_RETURN_IF_ERROR(tier_->VisitBucket(bucket, first_id, cold_row_bytes_, visit_cold));
    if (more) return true;
    if (first_id == 0 && visited_cold != cold) {
      return absl::DataLossError(absl::StrCat("table '", name_, "': bucket ", bucket, " should have ", cold,
                                              " rows on disk and has ", visited_cold));
    }
  }
  for (; next != in_memory.end(); ++next) {
    if (!visit_one(next->id, next->row, next->version)) return true;
  }
  return false;
}

absl::Status RowSpiller::VisitChanges(uint32_t bucket, uint32_t since, TableStorage::RowVisitor visit) {
  absl::ReaderMutexLock tier_lock(&TierLockOf(bucket));
  const FairLock::Reader lock(&buckets_->LockOfBucket(bucket));
  const RowLayout& layout = buckets_->layout();
  std::vector<float> floats(layout.row_floats());
  const auto visit_one = [&](uint64_t id, const char* row, uint32_t version) {
    buckets_->ReadRow(row, floats.data());
    visit(id, floats.data(), {version, layout.count(row)});
  };
  const std::vector<Buckets::StoredRow> changed = buckets_->SortedChanges(bucket, since);
  auto next = changed.begin();
  const BucketState& state = states_[bucket];
  // Usually the rows that leave memory have not changed for long. Then the tier need not be read.
  if (state.cold.load(std::memory_order_relaxed) > 0 && state.any_left &&
      Buckets::ChangedSince(state.newest_left, since)) {
    const RowStore& store = std::as_const(*buckets_).store(bucket);
    std::vector<float> aligned((cold_row_bytes_ + sizeof(float) - 1) / sizeof(float));
    const auto* const copy = reinterpret_cast<const char*>(aligned.data());
    TANDEM_RETURN_IF_ERROR(
        tier_->VisitBucket(bucket, /*first_id=*/0, cold_row_bytes_, [&](uint64_t id, const char* row) {
          uint32_t version;
          std::memcpy(&version, row, sizeof(version));
          if (!Buckets::ChangedSince(version, since)) return true;
          if (store.index().Find(id) != nullptr) return true;  // superseded
          for (; next != changed.end() && next->id < id; ++next)
            visit_one(next->id, next->row, next->version);
          std::memcpy(aligned.data(), row, cold_row_bytes_);
          visit_one(id, copy + sizeof(version), version);
          return true;
        }));
  }
  for (; next != changed.end(); ++next) visit_one(next->id, next->row, next->version);
  return absl::OkStatus();
}

void RowSpiller::Clear(absl::FunctionRef<void(uint32_t bucket)> clear_bucket) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (uint32_t l = 0; l < buckets_->num_locks(); ++l) tier_locks_[l].mutex.Lock();
  for (uint32_t b = 0; b < buckets_->num_buckets(); ++b) {
    const FairLock::Writer lock(&buckets_->LockOfBucket(b));
    clear_bucket(b);
    cold_rows_.fetch_sub(states_[b].cold.exchange(0), std::memory_order_relaxed);
    states_[b].left.Clear();
    states_[b].recent.Clear();
    states_[b].any_left = false;
  }
  tier_->Clear();
  {
    absl::MutexLock lock(&damage_mutex_);
    damage_ = absl::OkStatus();
    damaged_.store(false, std::memory_order_release);
  }
  for (uint32_t l = 0; l < buckets_->num_locks(); ++l) tier_locks_[l].mutex.Unlock();
}

void RowSpiller::AddStatistics(StorageStatistics* statistics) const {
  statistics->spilled_rows = cold_rows();
  statistics->spilled_bytes = tier_->bytes();
  statistics->spill_reads = spill_reads_.load(std::memory_order_relaxed);
  statistics->spill_writes = spill_writes_.load(std::memory_order_relaxed);
  statistics->failed_spills = failed_spills_.load(std::memory_order_relaxed);
}

size_t RowSpiller::BucketBytes(uint32_t bucket) const {
  return sizeof(BucketState) + states_[bucket].left.bytes() + states_[bucket].recent.bytes();
}

size_t RowSpiller::own_bytes() const { return sizeof(*this) + buckets_->num_locks() * sizeof(TierLock); }

void RowSpiller::SpillOver(std::vector<uint32_t>* buckets, uint32_t now, uint64_t most) {
  std::sort(buckets->begin(), buckets->end());
  buckets->erase(std::unique(buckets->begin(), buckets->end()), buckets->end());
  for (const uint32_t bucket : *buckets) SpillBucket(bucket, now, most);
  buckets->clear();
}

void RowSpiller::SpillBucket(uint32_t bucket, uint32_t now, uint64_t most) {
  if (SteadyNanoseconds() < next_spill_ns_.load(std::memory_order_relaxed)) return;
  absl::MutexLock tier_lock(&TierLockOf(bucket));
  FairLock& lock_of_bucket = buckets_->LockOfBucket(bucket);
  RowStore& store = buckets_->store(bucket);
  std::vector<uint64_t> leaving;
  {
    const FairLock::Reader lock(&lock_of_bucket);
    if (store.size() <= most) return;  // another call has spilled from it
    leaving = evictor_->LowestPriority(bucket, now, &states_[bucket].recent);
  }
  std::sort(leaving.begin(), leaving.end());
  std::vector<char> copies(std::min(leaving.size(), kSpilledAtOnce) * cold_row_bytes_);
  for (size_t first = 0; first < leaving.size(); first += kSpilledAtOnce) {
    const absl::Span<const uint64_t> ids = absl::MakeConstSpan(leaving).subspan(first, kSpilledAtOnce);
    {
      const FairLock::Reader lock(&lock_of_bucket);
      for (size_t i = 0; i < ids.size(); ++i) {
        const Cell* const cell = std::as_const(store).index().Find(ids[i]);
        TANDEM_CHECK(cell != nullptr);  // no other call erases rows of this bucket
        char* const copy = copies.data() + i * cold_row_bytes_;
        std::memcpy(copy, &cell->version, sizeof(cell->version));
        std::memcpy(copy + sizeof(cell->version), store.RowAt(cell->slot), buckets_->layout().row_bytes);
      }
    }
    const absl::Status put = tier_->Put(bucket, ids, cold_row_bytes_, copies.data());
    NoteSpilled(put);
    if (!put.ok()) return;
    spill_writes_.fetch_add(ids.size(), std::memory_order_relaxed);
    const FairLock::Writer lock(&lock_of_bucket);
    const LongestTime::Timer timer(&buckets_->longest_pause());
    uint32_t left = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const Cell* const cell = std::as_const(store).index().Find(ids[i]);
      const char* const copy = copies.data() + i * cold_row_bytes_;
      if (std::memcmp(copy, &cell->version, sizeof(cell->version)) != 0 ||
          std::memcmp(copy + sizeof(cell->version), store.RowAt(cell->slot), buckets_->layout().row_bytes) !=
              0) {
        continue;  // updated since: not cold after all
      }
      NoteLeft(bucket, ids[i], cell->version);
      store.Erase(ids[i]);
      ++left;
    }
    buckets_->NoteErased(left);
    cold_rows_.fetch_add(left, std::memory_order_relaxed);
    states_[bucket].cold.fetch_add(left, std::memory_order_relaxed);
    buckets_->CompactIfSparse(&store);
  }
}

void RowSpiller::NoteLeft(uint32_t bucket, uint64_t id, uint32_t version) {
  BucketState& state = states_[bucket];
  state.left.Add(id);
  if (!state.any_left || Buckets::ChangedSince(version, state.newest_left)) state.newest_left = version;
  state.any_left = true;
}

void RowSpiller::NoteSpilled(const absl::Status& status) {
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
