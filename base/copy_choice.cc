// SPDX-License-Identifier: Apache-2.0
#include "base/copy_choice.h"

#include <algorithm>
#include <cstring>

#include "base/copy_bytes.h"
#include "base/ticks.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tandem {
namespace {

// One copy in kTryEvery uses the way that was not the better one.
constexpr uint32_t kTryEvery = 32;

void CopyAroundCaches(char* to, const char* from, size_t bytes) {
#ifdef __SSE2__
  constexpr size_t kLine = 64;
  const size_t head = std::min<size_t>(bytes, -reinterpret_cast<uintptr_t>(to) % kLine);
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* const in = reinterpret_cast<const __m128i*>(from + at);
    auto* const out = reinterpret_cast<__m128i*>(to + at);
    for (int i = 0; i < 4; ++i) _mm_stream_si128(out + i, _mm_loadu_si128(in + i));
  }
  std::memcpy(to + at, from + at, bytes - at);
  _mm_sfence();  // streaming stores must be visible before any store that notifies the reader
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace

uint32_t CopyChoice::Least(const Costs& costs) {
  uint32_t least = 0;
  for (const auto& cost : costs) {
    const uint32_t ns = cost.load(std::memory_order_relaxed);
    if (ns != 0 && (least == 0 || ns < least)) least = ns;
  }
  return least;
}

CopyChoice::Way CopyChoice::Next() {
  const uint64_t plain = Least(costs_[kPlain]);
  const uint64_t around = Least(costs_[kAroundCaches]);
  const Way better = around != 0 && plain * 100 > around * plain_may_take_ ? kAroundCaches : kPlain;
  const bool try_other = copies_.fetch_add(1, std::memory_order_relaxed) % kTryEvery == kTryEvery - 1;
  return try_other ? (better == kPlain ? kAroundCaches : kPlain) : better;
}

void CopyChoice::Note(Way way, size_t bytes, int64_t nanoseconds) {
  const int64_t cost = nanoseconds * (int64_t{1} << 20) / static_cast<int64_t>(std::max<size_t>(bytes, 1));
  const uint32_t at = noted_[way].fetch_add(1, std::memory_order_relaxed) % kRemembered;
  costs_[way][at].store(static_cast<uint32_t>(std::clamp<int64_t>(cost, 1, UINT32_MAX)),
                        std::memory_order_relaxed);
}

void CopyChoice::Copy(char* to, const char* from, size_t bytes) {
  if (bytes < kWorthChoosing) {
    CopyBytes(to, from, bytes);
    return;
  }
  const Way way = Next();
  const int64_t begin = SteadyNanoseconds();
  if (way == kPlain) {
    CopyBytes(to, from, bytes);
  } else {
    CopyAroundCaches(to, from, bytes);
  }
  Note(way, bytes, SteadyNanoseconds() - begin);
}

}  // namespace tandem
