// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/rows/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>

#include "base/round_up.h"
#include "base/status.h"

namespace tandem::ps {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kPage = size_t{4} << 10;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMinRegion = size_t{64} << 10;
constexpr size_t kMaxRegion = size_t{32} << 20;
// Holes of at least this size return their pages to the system. All indexes of a table grow at about the same
// time, and the holes that their old blocks leave are too small for the new blocks.
constexpr size_t kLargeHole = size_t{64} << 10;

// Maps zeroed pages. From 2 MiB on they begin at a huge page boundary and the system is advised to use huge
// pages. Without those everything works, but slower.
char* MapPages(size_t bytes) {
  const bool huge = bytes >= kHugePage;
  const size_t mapped = huge ? bytes + kHugePage : bytes;
  void* const pages = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  char* begin = static_cast<char*>(pages);
  if (!huge) return begin;
  char* const aligned = reinterpret_cast<char*>(RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePage));
  if (aligned != begin) ::munmap(begin, aligned - begin);
  if (const size_t tail = begin + mapped - (aligned + bytes); tail > 0) ::munmap(aligned + bytes, tail);
  ::madvise(aligned, bytes, MADV_HUGEPAGE);
  return aligned;
}

// The whole pages of a hole that are returned to the system; none if the hole is small.
struct Pages {
  char* begin;
  size_t bytes;
};
Pages PagesOf(char* data, size_t bytes) {
  if (bytes < kLargeHole) return {data, 0};
  const size_t skip = RoundUp(reinterpret_cast<uintptr_t>(data), kPage) - reinterpret_cast<uintptr_t>(data);
  return {data + skip, (bytes - skip) / kPage * kPage};
}

}  // namespace

Arena::~Arena() {
  absl::MutexLock lock(&mutex_);
  TANDEM_CHECK(regions_.empty());  // every block has been released
}

void Arena::AddRegionLocked(size_t bytes) {
  bytes = RoundUp(bytes, bytes >= kHugePage ? kHugePage : kPage);
  char* const data = MapPages(bytes);
  regions_.emplace(data, Region{bytes, 0});
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  AddHoleLocked(data, bytes);
}

std::map<char*, Arena::Region>::iterator Arena::RegionOfLocked(char* data) {
  return std::prev(regions_.upper_bound(data));
}

void Arena::AddHoleLocked(char* data, size_t bytes) {
  holes_.emplace(data, bytes);
  holes_by_size_.emplace(bytes, data);
  bytes_.fetch_sub(PagesOf(data, bytes).bytes, std::memory_order_relaxed);
}

void Arena::RemoveHoleLocked(char* data, size_t bytes) {
  holes_.erase(data);
  holes_by_size_.erase({bytes, data});
  bytes_.fetch_add(PagesOf(data, bytes).bytes, std::memory_order_relaxed);
}

char* Arena::TakeLocked(size_t bytes) {
  const auto best = holes_by_size_.lower_bound({bytes, nullptr});
  if (best == holes_by_size_.end()) return nullptr;
  const auto [size, data] = *best;
  RemoveHoleLocked(data, size);
  if (size > bytes) AddHoleLocked(data + bytes, size - bytes);
  RegionOfLocked(data)->second.used += bytes;
  return data;
}

Arena::Block Arena::AllocateZeroed(size_t bytes) {
  bytes = RoundUp(bytes, kCacheLine);
  if (bytes >= kHugePage) {
    bytes = RoundUp(bytes, kPage);  // not to a huge page, whose unused part would be held for nothing
    char* const data = MapPages(bytes);
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
    absl::MutexLock lock(&mutex_);
    regions_.emplace(data, Region{bytes, bytes});
    return Block(this, data, bytes);
  }
  char* data;
  {
    absl::MutexLock lock(&mutex_);
    data = TakeLocked(bytes);
    if (data == nullptr) {
      // Regions grow with the table, by an eighth.
      AddRegionLocked(std::max(bytes, std::clamp(this->bytes() / 8, kMinRegion, kMaxRegion)));
      data = TakeLocked(bytes);
    }
  }
  std::memset(data, 0, bytes);
  return Block(this, data, bytes);
}

Arena::Block Arena::AllocateReady(size_t bytes) {
  Block block = AllocateZeroed(bytes);
  if (block.bytes() >= kHugePage) ::madvise(block.data(), block.bytes(), MADV_POPULATE_WRITE);
  return block;
}

void Arena::Release(char* data, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  const auto region = RegionOfLocked(data);
  char* const region_begin = region->first;
  char* const region_end = region_begin + region->second.bytes;
  region->second.used -= bytes;
  // The hole is merged with the holes on both sides, within the region.
  const auto after = holes_.lower_bound(data);
  if (after != holes_.end() && after->first == data + bytes && after->first < region_end) {
    const size_t more = after->second;
    RemoveHoleLocked(data + bytes, more);
    bytes += more;
  }
  const auto before = holes_.lower_bound(data);
  if (before != holes_.begin()) {
    const auto [start, size] = *std::prev(before);
    if (start >= region_begin && start + size == data) {
      RemoveHoleLocked(start, size);
      data = start;
      bytes += size;
    }
  }
  if (region->second.used > 0) {
    if (const Pages pages = PagesOf(data, bytes); pages.bytes > 0) {
      ::madvise(pages.begin, pages.bytes, MADV_DONTNEED);
    }
    return AddHoleLocked(data, bytes);
  }
  bytes_.fetch_sub(region->second.bytes, std::memory_order_relaxed);
  ::munmap(region_begin, region->second.bytes);
  regions_.erase(region);
}

}  // namespace tandem::ps
