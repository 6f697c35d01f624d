// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/allocations.h"

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TANDEM_UNDER_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TANDEM_UNDER_SANITIZER
#endif
#endif

namespace tandem::fuzz {
namespace {

std::atomic<int64_t> live{0}, peak{0}, base{0};

}  // namespace

void ResetPeak() {
  base = live.load();
  peak = live.load();
}
size_t PeakSinceReset() { return static_cast<size_t>(peak - base); }

#ifdef TANDEM_UNDER_SANITIZER
bool CountsAllocations() { return false; }
#else
bool CountsAllocations() { return true; }

namespace {

void* Counted(void* memory) {
  if (memory == nullptr) return nullptr;
  const int64_t now = live += static_cast<int64_t>(::malloc_usable_size(memory));
  int64_t before = peak.load(std::memory_order_relaxed);
  while (before < now && !peak.compare_exchange_weak(before, now)) {
  }
  return memory;
}
void* OrThrow(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* Allocate(size_t bytes) { return Counted(std::malloc(bytes)); }
void* Allocate(size_t bytes, std::align_val_t alignment) {
  void* memory = nullptr;
  const size_t least = sizeof(void*);
  const size_t wanted = static_cast<size_t>(alignment) < least ? least : static_cast<size_t>(alignment);
  return ::posix_memalign(&memory, wanted, bytes) == 0 ? Counted(memory) : nullptr;
}
void Free(void* memory) {
  if (memory != nullptr) live -= static_cast<int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace
#endif

}  // namespace tandem::fuzz

#ifndef TANDEM_UNDER_SANITIZER
using tandem::fuzz::Allocate;
using tandem::fuzz::Free;
using tandem::fuzz::OrThrow;
void* operator new(size_t n) { return OrThrow(Allocate(n)); }
void* operator new[](size_t n) { return OrThrow(Allocate(n)); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return Allocate(n); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return Allocate(n); }
void* operator new(size_t n, std::align_val_t a) { return OrThrow(Allocate(n, a)); }
void* operator new[](size_t n, std::align_val_t a) { return OrThrow(Allocate(n, a)); }
void* operator new(size_t n, std::align_val_t a, const std::nothrow_t&) noexcept { return Allocate(n, a); }
void* operator new[](size_t n, std::align_val_t a, const std::nothrow_t&) noexcept { return Allocate(n, a); }
void operator delete(void* p) noexcept { Free(p); }
void operator delete[](void* p) noexcept { Free(p); }
void operator delete(void* p, size_t) noexcept { Free(p); }
void operator delete[](void* p, size_t) noexcept { Free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { Free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { Free(p); }
void operator delete(void* p, std::align_val_t) noexcept { Free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { Free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { Free(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { Free(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { Free(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { Free(p); }
#endif
