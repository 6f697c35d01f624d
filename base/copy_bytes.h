// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_COPY_BYTES_H_
#define TANDEM_BASE_COPY_BYTES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tandem {

// Copies `bytes` bytes between arrays that do not overlap, as memcpy does, for arrays of kilobytes and more.
//
// glibc before 2.40 copies more than 2 KiB by `rep movsb` on processors with FSRM. On AMD Zen 4 that takes 15
// times as long if the destination is 1 to 15 bytes behind the source, modulo 4096 (glibc's bug 30994): 75
// instead of 5 us for 256 KiB. Payloads begin behind headers of any size, and large arrays of NumPy 16 bytes
// behind a page. Pieces of 2 KiB cost a tenth more than one fast memcpy.
inline void CopyBytes(void* to, const void* from, size_t bytes) {
  constexpr size_t kPage = 4096, kPiece = 2048, kNear = 16;
  const size_t behind = (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPage;
  if (bytes <= kPiece || behind == 0 || behind >= kNear) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  for (size_t at = 0; at < bytes; at += kPiece) {
    std::memcpy(static_cast<char*>(to) + at, static_cast<const char*>(from) + at,
                std::min(kPiece, bytes - at));
  }
}

}  // namespace tandem

#endif  // TANDEM_BASE_COPY_BYTES_H_
