#ifndef TANDEM_PS_STORAGE_BATCH_PREFETCH_H_
#define TANDEM_PS_STORAGE_BATCH_PREFETCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tandem::ps {

// How near memory is fetched that will be used soon: to the second-level cache. The first level can wait for
// some twenty lines at a time and makes further requests wait, too; the second for more: 256-byte rows were
// gathered almost twice as fast.
inline constexpr int kPrefetchLocality = 2;

// Asks for the memory [data, data + bytes), up to 1 KiB of it; longer runs the processor's own prefetcher
// sees coming.
inline void Prefetch(const char* data, size_t bytes) {
  constexpr size_t kCacheLine = 64;
  const char* const end = data + std::min<size_t>(bytes, 1024);
  for (const char* p = data - reinterpret_cast<uintptr_t>(data) % kCacheLine; p < end; p += kCacheLine) {
    __builtin_prefetch(p, 0, kPrefetchLocality);
  }
}

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_BATCH_PREFETCH_H_
