#ifndef TANDEM_PS_STORAGE_PREFETCH_H_
#define TANDEM_PS_STORAGE_PREFETCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tandem::ps {

// Asks for the memory [data, data + bytes), up to 1 KiB of it; longer runs the processor's own prefetcher
// sees coming. `kForWrite`: to be changed.
template <bool kForWrite>
inline void Prefetch(const char* data, size_t bytes) {
  constexpr size_t kCacheLine = 64;
  const char* const end = data + std::min<size_t>(bytes, 1024);
  for (const char* p = data - reinterpret_cast<uintptr_t>(data) % kCacheLine; p < end; p += kCacheLine) {
    __builtin_prefetch(p, kForWrite ? 1 : 0);
  }
}

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_PREFETCH_H_
