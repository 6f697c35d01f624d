// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_PREFETCH_H_
#define TANDEM_PS_STORAGE_PREFETCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tandem::ps {

// The locality argument of __builtin_prefetch for memory that will be used soon: the second-level cache. The
// first level tracks only about twenty outstanding lines and blocks further requests; the second tracks more,
// which gathers 256-byte rows almost twice as fast.
inline constexpr int kPrefetchLocality = 2;

// Prefetches [data, data + bytes) for reading, at most its first 1 KiB; the hardware prefetcher recognises
// longer runs. Requires bytes > 0. Never blocks and never faults. The number of prefetches does not depend on
// the alignment of `data`: the load that yields the pointer may still be under way, and a branch on it would
// stall the instructions that follow (a tenth of a gather's time).
inline void Prefetch(const char* data, size_t bytes) {
  constexpr size_t kCacheLine = 64, kMost = 1024;
  const size_t end = std::min(bytes, kMost);
  for (size_t at = 0; at < end; at += kCacheLine) __builtin_prefetch(data + at, 0, kPrefetchLocality);
  __builtin_prefetch(data + end - 1, 0, kPrefetchLocality);
}

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_PREFETCH_H_
