// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include <cmath>
#include <cstring>

namespace tandem {

uint64_t HashBytes(absl::string_view bytes, uint64_t seed) {
  uint64_t h = Mix64(seed, bytes.size());
  const char* p = bytes.data();
  size_t n = bytes.size();
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    h = Mix64(h ^ word);
  }
  if (n > 0) {
    uint64_t word = 0;
    std::memcpy(&word, p, n);
    h = Mix64(h ^ word);
  }
  return h;
}

uint64_t CounterRandom::Below(uint64_t n) {
  using uint128 = unsigned __int128;
  uint128 product = static_cast<uint128>((*this)()) * n;
  uint64_t low = static_cast<uint64_t>(product);
  if (low < n) {
    const uint64_t threshold = -n % n;
    while (low < threshold) {
      product = static_cast<uint128>((*this)()) * n;
      low = static_cast<uint64_t>(product);
    }
  }
  return static_cast<uint64_t>(product >> 64);
}

double CounterRandom::Normal() {
  const double u = 1.0 - UniformDouble();  // (0, 1]
  const double v = UniformDouble();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * M_PI * v);
}

}  // namespace tandem
