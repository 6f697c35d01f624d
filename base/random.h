// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_RANDOM_H_
#define TANDEM_BASE_RANDOM_H_

// Hashing and counter-based random numbers. Every value is a function of its arguments only. Values must not
// change between versions or (little-endian) machines, because bucket placement, initial row values, data
// splits and shuffles depend on them.

#include <cstdint>

#include "absl/strings/string_view.h"

namespace tandem {

// A bijective 64-bit mixer (the finaliser of SplitMix64, Steele, Lea and Flood, OOPSLA 2014).
inline uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
// Mixes two values into one; not bijective.
inline uint64_t Mix64(uint64_t a, uint64_t b) { return Mix64(Mix64(a) ^ (b * 0xff51afd7ed558ccdull)); }

// Returns a seeded 64-bit hash of a byte string, the same in all versions.
uint64_t HashBytes(absl::string_view bytes, uint64_t seed = 0);

// Generates the random numbers of (seed, stream): value i is a function of these three. Satisfies
// UniformRandomBitGenerator. Not thread-safe. Cheap to construct.
class CounterRandom {
 public:
  using result_type = uint64_t;
  CounterRandom(uint64_t seed, uint64_t stream) : base_(Mix64(seed, stream)) {}
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~0ull; }
  uint64_t operator()() { return Mix64(base_ + 0xd1342543de82ef95ull * ++counter_); }

  // Returns a uniform value in [0, 1) with 24 random bits, which float represents exactly.
  float Uniform() { return static_cast<float>((*this)() >> 40) * 0x1.0p-24f; }
  // Returns a uniform value in [0, 1) with 53 random bits.
  double UniformDouble() { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }
  // Returns a uniform integer in [0, n), n > 0, without modulo bias (Lemire 2019).
  uint64_t Below(uint64_t n);
  // Returns a standard normal value (Box-Muller). Each call computes one value, so that a value does not
  // depend on how many calls came before. Also depends on the C library's log and cos.
  double Normal();

 private:
  uint64_t base_;
  uint64_t counter_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_BASE_RANDOM_H_
