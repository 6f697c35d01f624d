// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/arena.h"

#include <algorithm>
#include <iterator>

#include "base/status.h"
#include "rpc/shm/layout.h"

namespace tandem::rpc::shm {
namespace {

// Blocks are allocated cyclically within this window. If a cache line is reused while the reader's private
// cache still holds it, the writer pays a round trip between the cores. Memory that was never touched costs a
// page fault. A window larger than several private caches avoids the former; a larger one would only cause
// more of the latter.
constexpr uint32_t kWindowPages = (8u << 20) / kPage;
// Number of blocks checked for their return per allocation.
constexpr size_t kLooks = 8;

uint32_t PagesOf(size_t bytes) { return static_cast<uint32_t>((bytes + kPage - 1) / kPage); }

}  // namespace

Arena::Arena(const std::atomic<uint32_t>* released, uint32_t pages)
    : released_(released),
      pages_(pages),
      window_(std::min(pages, kWindowPages)),
      blocks_(pages),
      block_of_(pages, 0),
      free_{{0, pages}},
      free_pages_(pages) {}

std::optional<uint32_t> Arena::Take(size_t bytes, size_t reserve) {
  absl::MutexLock lock(&mutex_);
  Reclaim(kLooks);
  if (bytes > blocks_.size() * kPage) return std::nullopt;
  const uint32_t pages = PagesOf(bytes);
  if (free_pages_ < pages + reserve) {
    Reclaim(awaiting_return_.size());
    if (free_pages_ < pages + reserve) return std::nullopt;
  }
  if (const auto found = Find(pages)) return found;
  Reclaim(awaiting_return_.size());
  return Find(pages);
}

std::optional<uint32_t> Arena::TakeUpTo(size_t most, size_t least, size_t* bytes) {
  absl::MutexLock lock(&mutex_);
  Reclaim(awaiting_return_.size());
  if (const auto whole = Find(PagesOf(most))) {
    *bytes = most;
    return whole;
  }
  const auto largest = std::max_element(free_.begin(), free_.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  if (largest == free_.end() || largest->second * kPage < least) return std::nullopt;
  *bytes = std::min<size_t>(most, largest->second * kPage);
  return Cut(largest, largest->first, PagesOf(*bytes));
}

uint32_t Arena::BlockOf(uint32_t page) {
  absl::MutexLock lock(&mutex_);
  return block_of_[page];
}

void Arena::Sent(uint32_t block) {
  absl::MutexLock lock(&mutex_);
  ++blocks_[block].sends;
}

void Arena::Release(uint32_t block) {
  absl::MutexLock lock(&mutex_);
  if (blocks_[block].sends == 0) {
    Free(block);
  } else {
    awaiting_return_.push_back(block);
  }
}

size_t Arena::free_pages() {
  absl::MutexLock lock(&mutex_);
  Reclaim(awaiting_return_.size());
  return free_pages_;
}

void Arena::Reclaim(size_t most) {
  for (size_t i = std::min(most, awaiting_return_.size()); i > 0; --i) {
    const uint32_t block = awaiting_return_.front();
    awaiting_return_.pop_front();
    const Block& b = blocks_[block];
    if (released_[block].load(std::memory_order_seq_cst) - b.base == b.sends) {
      Free(block);
    } else {
      awaiting_return_.push_back(block);
    }
  }
}

std::optional<uint32_t> Arena::Find(uint32_t pages) {
  auto run = free_.upper_bound(cursor_);
  if (run != free_.begin()) run = std::prev(run);  // it may contain the cursor
  for (; run != free_.end() && run->first < window_; ++run) {
    const uint32_t begin = std::max(run->first, cursor_);
    const uint32_t end = std::min(run->first + run->second, window_);
    if (begin < end && end - begin >= pages) return Cut(run, begin, pages);
  }
  for (run = free_.begin(); run != free_.end(); ++run) {
    if (run->second >= pages) return Cut(run, run->first, pages);
  }
  return std::nullopt;
}

std::optional<uint32_t> Arena::Cut(std::map<uint32_t, uint32_t>::iterator run, uint32_t begin,
                                   uint32_t pages) {
  const uint32_t run_begin = run->first, run_end = run->first + run->second;
  free_.erase(run);
  if (run_begin < begin) free_[run_begin] = begin - run_begin;
  if (begin + pages < run_end) free_[begin + pages] = run_end - begin - pages;
  free_pages_ -= pages;
  blocks_[begin] = {pages, 0, released_[begin].load(std::memory_order_relaxed)};
  std::fill_n(block_of_.begin() + begin, pages, begin);
  cursor_ = begin + pages;
  return begin;
}

void Arena::Free(uint32_t block) {
  uint32_t begin = block, pages = blocks_[block].pages;
  TANDEM_CHECK(pages > 0);
  blocks_[block].pages = 0;
  free_pages_ += pages;
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + pages) {
    pages += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      pages += before->second;
      free_.erase(before);
    }
  }
  free_[begin] = pages;
}

}  // namespace tandem::rpc::shm
