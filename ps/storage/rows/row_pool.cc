// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/rows/row_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <new>

#include "absl/numeric/bits.h"
#include "base/round_up.h"
#include "base/status.h"

namespace tandem::ps {
namespace {

constexpr size_t kSmallPage = size_t{4} << 10;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMaxChunkBytes = size_t{32} << 20;
// The part of a table's first chunk that uses small pages.
constexpr size_t kSmallPages = size_t{16} << 20;

// The most memory that Prepare makes ready beyond what the caller asked for.
constexpr size_t kReadyBytes = size_t{8} << 20;

// Reserves memory that begins at a huge page boundary.
char* Reserve(size_t bytes) {
  void* const pages = ::mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  char* const begin = static_cast<char*>(pages);
  char* const aligned = reinterpret_cast<char*>(RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePage));
  if (aligned != begin) ::munmap(begin, aligned - begin);
  if (const size_t tail = begin + kHugePage - aligned; tail > 0) ::munmap(aligned + bytes, tail);
  return aligned;
}

}  // namespace

RowPool::RowPool(const RowLayout* layout)
    : stride_(layout->stride),
      shift_(absl::bit_width(std::clamp<size_t>(kMaxChunkBytes / stride_, 1, size_t{1} << 22)) - 1),
      zero_row_(std::make_unique<char[]>(stride_)) {
  absl::MutexLock lock(&mutex_);
  LengthenListLocked();
  all_.push_back(Chunk{.data = zero_row_.get()});
  lists_.back()[0] = zero_row_.get();
}

RowPool::~RowPool() {
  absl::MutexLock lock(&mutex_);
  for (size_t number = 1; number < all_.size(); ++number) {
    const Chunk& chunk = all_[number];
    TANDEM_CHECK(chunk.used == 0);  // every run has been released
    // A chunk may have been prepared and then not needed.
    if (chunk.data != nullptr) ::munmap(chunk.data, mapped_bytes());
  }
}

size_t RowPool::mapped_bytes() const { return RoundUp(stride_ << shift_, kHugePage); }

void RowPool::AddHoleLocked(Run hole) {
  holes_.emplace(hole.begin, hole.end);
  holes_by_size_.emplace(hole.size(), hole.begin);
}

void RowPool::RemoveHoleLocked(Run hole) {
  holes_.erase(hole.begin);
  holes_by_size_.erase({hole.size(), hole.begin});
}

void RowPool::LengthenListLocked() {
  const size_t size = std::max<size_t>(16, 2 * list_size_);
  auto list = std::make_unique<char*[]>(size);
  if (list_size_ > 0) std::copy_n(lists_.back().get(), list_size_, list.get());
  lists_.push_back(std::move(list));
  list_size_ = size;
  chunks_.store(lists_.back().get(), std::memory_order_release);
}

void RowPool::AddChunkLocked() {
  const auto free =
      std::find_if(all_.begin(), all_.end(), [](const Chunk& chunk) { return chunk.data == nullptr; });
  const size_t number = free - all_.begin();
  // The end of a run of its slots must fit 32 bits.
  if (((number + 1) << shift_) > std::numeric_limits<uint32_t>::max()) throw std::bad_alloc();
  if (number == list_size_) LengthenListLocked();
  char* const data = Reserve(mapped_bytes());
  const size_t small = bytes() < kSmallPages ? kSmallPages : 0;
  if (small < mapped_bytes()) ::madvise(data + small, mapped_bytes() - small, MADV_HUGEPAGE);
  if (number == all_.size()) all_.emplace_back();
  all_[number] = Chunk{.data = data};
  lists_.back()[number] = data;
  const auto begin = static_cast<uint32_t>(number << shift_);
  AddHoleLocked({begin, begin + slots_a_chunk()});
}

RowPool::Run RowPool::TakeLocked(Run hole, uint32_t count) {
  RemoveHoleLocked(hole);
  const Run run = {hole.begin, std::min(hole.end, hole.begin + count)};
  if (run.end < hole.end) AddHoleLocked({run.end, hole.end});
  Chunk& chunk = all_[run.begin >> shift_];
  chunk.used += run.size();
  const size_t end = (size_t{run.end - 1} & (slots_a_chunk() - 1)) + 1;
  if (const size_t held = RoundUp(end * stride_, kSmallPage); held > chunk.held_bytes) {
    bytes_.fetch_add(held - chunk.held_bytes, std::memory_order_relaxed);
    chunk.held_bytes = held;
  }
  return run;
}

RowPool::Run RowPool::Take(uint32_t count) {
  TANDEM_CHECK(count > 0);
  absl::MutexLock lock(&mutex_);
  const auto best = holes_by_size_.lower_bound({count, 0});
  if (best != holes_by_size_.end()) return TakeLocked({best->second, best->second + best->first}, count);
  // Uses up the rest of a chunk, unless it is so small that a large bucket would be fragmented.
  if (!holes_by_size_.empty() && holes_by_size_.rbegin()->first >= count / 4) {
    const auto [size, begin] = *holes_by_size_.rbegin();
    return TakeLocked({begin, begin + size}, size);
  }
  AddChunkLocked();
  const auto [size, begin] = *holes_by_size_.rbegin();
  return TakeLocked({begin, begin + size}, count);
}

void RowPool::Release(Run run) {
  if (run.size() == 0) return;
  absl::MutexLock lock(&mutex_);
  const uint32_t number = run.begin >> shift_;
  Chunk& chunk = all_[number];
  chunk.used -= run.size();
  // The hole is merged with the holes on both sides, within the chunk.
  const auto after = holes_.find(run.end);
  if (after != holes_.end() && (run.end >> shift_) == number) {
    const Run hole = {after->first, after->second};
    RemoveHoleLocked(hole);
    run.end = hole.end;
  }
  const auto next = holes_.lower_bound(run.begin);
  if (next != holes_.begin()) {
    const Run hole = {std::prev(next)->first, std::prev(next)->second};
    if (hole.end == run.begin && (hole.begin >> shift_) == number) {
      RemoveHoleLocked(hole);
      run.begin = hole.begin;
    }
  }
  if (chunk.used > 0) return AddHoleLocked(run);
  bytes_.fetch_sub(chunk.held_bytes, std::memory_order_relaxed);
  ::munmap(chunk.data, mapped_bytes());
  chunk = Chunk{};
  lists_.back()[number] = nullptr;
}

void RowPool::Prepare(uint32_t count) {
  char* begin;
  char* end;
  {
    absl::MutexLock lock(&mutex_);
    count += static_cast<uint32_t>(std::min(bytes() / 32, kReadyBytes) / stride_);
    // Less than half a chunk is enough: a new chunk is seldom begun.
    const uint32_t wanted = std::min(count, slots_a_chunk() / 2);
    if (wanted == 0) return;
    if (holes_by_size_.empty() || holes_by_size_.rbegin()->first < wanted) AddChunkLocked();
    // Buckets eventually take their slots from the largest hole, whose tail has never been used.
    const auto [size, first] = *holes_by_size_.rbegin();
    Chunk& chunk = all_[first >> shift_];
    const size_t from = std::max(chunk.held_bytes, chunk.ready_bytes);
    const size_t last = size_t{first & (slots_a_chunk() - 1)} + std::min(size, count);
    const size_t to = std::min(RoundUp(last * stride_, kSmallPage), mapped_bytes());
    if (from >= to) return;
    chunk.ready_bytes = to;
    begin = chunk.data + from;
    end = chunk.data + to;
  }
  // These pages have no rows yet. If another thread takes the slots meanwhile, populating does no harm.
  ::madvise(begin, end - begin, MADV_POPULATE_WRITE);
}

}  // namespace tandem::ps
