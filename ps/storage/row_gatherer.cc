// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/row_gatherer.h"

#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "ps/storage/row_codec.h"

namespace tandem::ps {
namespace {

using Cell = Buckets::Cell;

// The number of ids that are read under one acquisition of the locks: enough to make locking cheap, and few
// enough that writers wait for only some ten microseconds.
constexpr size_t kRun = 1024;
static_assert(kRun <= kMaxLookup);

}  // namespace

void RowGatherer::Gather(const RowFormat& format, absl::Span<const uint64_t> ids, char* out,
                         std::vector<uint32_t>* missing) const {
  for (size_t first = 0; first < ids.size(); first += kRun) {
    const absl::Span<const uint64_t> run = ids.subspan(first, kRun);
    char* const to = out + first * format.out_bytes();
    const uint32_t locks = LocksOf(run);
    if (TryLockShared(locks)) {
      GatherRows(buckets_->indexes(), buckets_->row_address(), run, format, to, static_cast<uint32_t>(first),
                 missing);
      UnlockShared(locks);
    } else {
      GatherLockByLock(format, run, to, static_cast<uint32_t>(first), missing);
    }
  }
}

RowGatherer::NewerRows RowGatherer::GatherNewer(absl::Span<const uint64_t> ids, const uint32_t* cached,
                                                uint64_t max_age, float* out, uint8_t* sent) const {
  const RowLayout& layout = buckets_->layout();
  NewerRows newer;
  // The ids of a run whose copies are too old to be used without a check of their row's version.
  uint64_t old_ids[kRun];
  uint32_t positions[kRun];
  const Cell* cells[kRun];
  const char* rows[kRun];
  for (size_t first = 0; first < ids.size(); first += kRun) {
    const absl::Span<const uint64_t> run = ids.subspan(first, kRun);
    const uint32_t locks = LocksOf(run);
    LockShared(locks);
    const auto now = static_cast<uint32_t>(buckets_->clock());
    size_t old = 0;
    for (size_t i = 0; i < run.size(); ++i) {
      const uint32_t age = now - cached[first + i];
      old_ids[old] = run[i];
      positions[old] = static_cast<uint32_t>(first + i);
      old += (cached[first + i] == 0) | (age > max_age) ? 1 : 0;
    }
    FindCells(buckets_->indexes(), absl::MakeConstSpan(old_ids, old), cells);
    const RowAddress address = buckets_->row_address();
    const size_t begin = newer.wanted.size();
    for (size_t k = 0; k < old; ++k) {
      const size_t i = positions[k];
      // A row that left the table reads as its initial value again, which is newer than the copy.
      if (cached[i] != 0 && cells[k] != nullptr && static_cast<int32_t>(cells[k]->version - cached[i]) <= 0) {
        continue;
      }
      sent[i / 8] |= static_cast<uint8_t>(1u << (i % 8));
      rows[newer.wanted.size() - begin] = cells[k] == nullptr ? nullptr : address.Of(cells[k]->slot);
      if (cells[k] == nullptr) {
        newer.missing.push_back(static_cast<uint32_t>(newer.wanted.size()));
        if (spills_ && cached[i] != 0) newer.doubtful.push_back(static_cast<uint32_t>(i));
      }
      newer.wanted.push_back(ids[i]);
    }
    LoadRows(layout.dtype, absl::MakeConstSpan(rows, newer.wanted.size() - begin), layout.dim,
             out + begin * layout.dim);
    UnlockShared(locks);
  }
  return newer;
}

uint32_t RowGatherer::LocksOf(absl::Span<const uint64_t> ids) const {
  const uint32_t all = static_cast<uint32_t>((uint64_t{1} << buckets_->num_locks()) - 1);
  // This many ids need nearly all locks: hashing twice would cost more than taking a few for nothing.
  if (ids.size() > 2 * Buckets::kMaxLocks) return all;
  uint32_t needed = 0;
  for (const uint64_t id : ids) needed |= uint32_t{1} << buckets_->LockOfHash(Mix64(id));
  return needed;
}

void RowGatherer::LockShared(uint32_t locks) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (; locks != 0; locks &= locks - 1) buckets_->lock(__builtin_ctz(locks)).ReaderLock();
}

bool RowGatherer::TryLockShared(uint32_t locks) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (uint32_t left = locks; left != 0; left &= left - 1) {
    if (buckets_->lock(__builtin_ctz(left)).ReaderTryLock()) continue;
    UnlockShared(locks & ~left);
    return false;
  }
  return true;
}

void RowGatherer::UnlockShared(uint32_t locks) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (; locks != 0; locks &= locks - 1) buckets_->lock(__builtin_ctz(locks)).ReaderUnlock();
}

void RowGatherer::GatherLockByLock(const RowFormat& format, absl::Span<const uint64_t> ids, char* out,
                                   uint32_t first, std::vector<uint32_t>* missing) const {
  // Sort the ids by lock: those of lock l are the counts[l] ids from sorted[begins[l]] on.
  uint64_t sorted[kRun];
  uint16_t positions[kRun];
  uint32_t counts[Buckets::kMaxLocks] = {}, begins[Buckets::kMaxLocks] = {}, next[Buckets::kMaxLocks];
  for (const uint64_t id : ids) ++counts[buckets_->LockOfHash(Mix64(id))];
  for (uint32_t l = 1; l < Buckets::kMaxLocks; ++l) begins[l] = begins[l - 1] + counts[l - 1];
  std::copy_n(begins, Buckets::kMaxLocks, next);
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t at = next[buckets_->LockOfHash(Mix64(ids[i]))]++;
    sorted[at] = ids[i];
    positions[at] = static_cast<uint16_t>(i);
  }
  // They are read in that order, and then copied to their places with no lock held.
  const size_t bytes = format.out_bytes();
  const RowFormat nearby = {format.out == RowFormat::Out::kStored ? format.out : RowFormat::Out::kFloats,
                            format.dtype, format.dim};
  std::vector<char> rows(*std::max_element(counts, counts + Buckets::kMaxLocks) * bytes);
  std::vector<uint32_t> absent;  // in `sorted`
  const auto read_locked = [&](uint32_t l) {
    GatherRows(buckets_->indexes(), buckets_->row_address(),
               absl::MakeConstSpan(sorted + begins[l], counts[l]), nearby, rows.data(), begins[l], &absent);
  };
  const auto scatter = [&](uint32_t l) {
    for (uint32_t k = 0; k < counts[l]; ++k) {
      std::memcpy(out + positions[begins[l] + k] * bytes, rows.data() + k * bytes, bytes);
    }
  };
  uint32_t busy = 0;
  for (uint32_t l = 0; l < buckets_->num_locks(); ++l) {
    if (counts[l] == 0) continue;
    if (!TryLockShared(uint32_t{1} << l)) {
      busy |= uint32_t{1} << l;
      continue;
    }
    read_locked(l);
    UnlockShared(uint32_t{1} << l);
    scatter(l);
  }
  for (; busy != 0; busy &= busy - 1) {
    const uint32_t l = __builtin_ctz(busy);
    {
      const FairLock::Reader lock(&buckets_->lock(l));
      read_locked(l);
    }
    scatter(l);
  }
  for (uint32_t& i : absent) i = first + positions[i];
  std::sort(absent.begin(), absent.end());
  missing->insert(missing->end(), absent.begin(), absent.end());
}

}  // namespace tandem::ps
