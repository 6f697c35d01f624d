// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_COPY_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_COPY_H_

// Copies with or without caching of the destination, and the choice between the two for shared memory.

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/copy_bytes.h"
#include "collectives/reduce/reduce.h"

namespace tandem::collectives::shm {

// Copies memory. kStream bypasses the caches and writes whole lines, so that memory is not read before it is
// overwritten. It must be followed by StreamFence() before another thread or process is told of the data.
inline void Copy(void* to, const void* from, size_t bytes, WriteHint hint) {
#if defined(__SSE2__)
  if (hint == WriteHint::kStream && bytes >= 256) {
    char* out = static_cast<char*>(to);
    const char* in = static_cast<const char*>(from);
    const size_t head = -reinterpret_cast<uintptr_t>(out) & 63;
    std::memcpy(out, in, head);
    out += head, in += head, bytes -= head;
    for (; bytes >= 64; out += 64, in += 64, bytes -= 64) {
      const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
      const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 16));
      const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 32));
      const __m128i d = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 48));
      _mm_stream_si128(reinterpret_cast<__m128i*>(out), a);
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + 16), b);
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + 32), c);
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + 48), d);
    }
    to = out, from = in;
  }
#endif
  CopyBytes(to, from, bytes);
}

inline void StreamFence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Writes data that another core will read, in the way that is cheaper on this machine at the moment. If two
// cores share a cache, ordinary stores are faster: the reader finds the lines there (measured: 128 KiB
// written and read in 6 us, against 15 us streamed). If they do not, each written line must first be fetched
// from the reader's side, and streaming is much faster (13 us against 43 us). A virtual machine changes
// between the two as its processors are moved, so the writer measures from time to time. Readers need not
// know the choice. Used by one thread at a time.
class LaneWriter {
 public:
  // kStream: call Fence before the other side is told of the data.
  WriteHint hint() const { return stream_for_ > 0 ? WriteHint::kStream : WriteHint::kCache; }
  void Write(void* to, const void* from, size_t bytes);
  void Fence() {
    if (stream_for_ > 0 || fence_) StreamFence();
    fence_ = false;
  }

 private:
  // Chooses the next way of writing from the time that it takes to fill `to`, which is about to be
  // overwritten.
  void Measure(void* to);

  int writes_ = 0;      // until the next measurement
  int slow_ = 0;        // consecutive measurements that were slow
  int stream_for_ = 0;  // number of upcoming writes that stream
  bool fence_ = false;  // something was streamed since the last Fence
};

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_COPY_H_
