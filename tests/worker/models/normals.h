// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_WORKER_MODELS_NORMALS_H_
#define TANDEM_TESTS_WORKER_MODELS_NORMALS_H_

#include <cstdint>
#include <vector>

#include "base/random.h"

namespace tandem::worker {

// Returns `n` normally distributed values around 0. Different streams are independent.
inline std::vector<float> Normals(size_t n, uint64_t stream, double deviation = 1, uint64_t seed = 1) {
  CounterRandom random(seed, stream);
  std::vector<float> values(n);
  for (float& v : values) v = static_cast<float>(random.Normal() * deviation);
  return values;
}

}  // namespace tandem::worker

#endif  // TANDEM_TESTS_WORKER_MODELS_NORMALS_H_
