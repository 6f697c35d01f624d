#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_COPY_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_COPY_H_

// Copies that do or do not leave the destination in the cache, and which of them suits shared memory.

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "collectives/reduce/reduce.h"

namespace tandem::collectives::shm {

// kStream: past the caches, a whole line at a time, so that memory is not read before it is overwritten.
// Must be followed by StreamFence() before anybody else is told of it.
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
  if (bytes > 0) std::memcpy(to, from, bytes);
}

inline void StreamFence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Writes what another core will read, in the way that is cheaper on this machine just now. Where two cores
// share a cache, ordinary stores win: the reader finds the lines there (measured: 128 KiB written and read in
// 6 us, against 15 streamed). Where they do not, each line that is written must first be fetched from the
// reader's side, and streaming past the caches wins by far (13 us against 43). A virtual machine goes from
// one to the other as its processors are moved, so this is measured now and then. Readers need not know. Used
// by one thread at a time.
class LaneWriter {
 public:
  // kStream: call Fence before the other side is told.
  WriteHint hint() const { return stream_for_ > 0 ? WriteHint::kStream : WriteHint::kCache; }
  void Write(void* to, const void* from, size_t bytes);
  void Fence() {
    if (stream_for_ > 0 || fence_) StreamFence();
    fence_ = false;
  }

 private:
  // Decides how to go on, from the time that it takes to fill `to`, which is about to be overwritten.
  void Measure(void* to);

  int writes_ = 0;      // until the next measurement
  int slow_ = 0;        // measurements in a row that were
  int stream_for_ = 0;  // writes to come
  bool fence_ = false;  // something was streamed
};

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_COPY_H_
