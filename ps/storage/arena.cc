#include "ps/storage/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace tandem::ps {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMinRegion = size_t{64} << 10;
constexpr size_t kMaxRegion = size_t{32} << 20;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

AlignedMemory::AlignedMemory(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
  bytes_ = RoundUp(bytes, alignment);
  data_.reset(static_cast<char*>(std::aligned_alloc(alignment, bytes_)));
  if (data_ == nullptr) throw std::bad_alloc();
  // Advice only: without huge pages everything works, slower.
  if (alignment == kHugePage) madvise(data_.get(), bytes_, MADV_HUGEPAGE);
}

void AlignedMemory::Free::operator()(char* data) const { std::free(data); }

struct Arena::Region {
  Region(size_t bytes, std::atomic<size_t>* total) : memory(bytes), total(total) {
    total->fetch_add(memory.bytes(), std::memory_order_relaxed);
  }
  ~Region() { total->fetch_sub(memory.bytes(), std::memory_order_relaxed); }

  AlignedMemory memory;
  std::atomic<size_t>* const total;
};

Arena::Slab Arena::Allocate(size_t unit, size_t count) {
  absl::MutexLock lock(&mutex_);
  if (region_ == nullptr || region_->memory.bytes() - used_ < unit) {
    const size_t growth = std::clamp(RoundUp(bytes() / 8, kMinRegion), kMinRegion, kMaxRegion);
    region_ = std::make_shared<Region>(std::max(unit, growth), &bytes_);
    used_ = 0;
  }
  const size_t left = region_->memory.bytes() - used_;
  Slab slab{region_, region_->memory.data() + used_, std::min(count, left / unit) * unit};
  used_ = std::min(region_->memory.bytes(), used_ + RoundUp(slab.bytes, kCacheLine));
  return slab;
}

void Arena::StartAfresh() {
  absl::MutexLock lock(&mutex_);
  region_.reset();
  used_ = 0;
}

}  // namespace tandem::ps
