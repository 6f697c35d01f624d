// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_RANDOM_SEED_H_
#define TANDEM_TESTS_TESTING_RANDOM_SEED_H_

// The seed of a test that draws other numbers in each run.

#include <cstdint>
#include <cstdlib>
#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"

namespace tandem::testing {

// Returns the value of TANDEM_TEST_SEED if it is set, which repeats an earlier run, and the time otherwise.
// Prints the seed.
inline uint64_t RandomSeed() {
  const char* given = std::getenv("TANDEM_TEST_SEED");
  uint64_t seed = 0;
  if (given == nullptr || !absl::SimpleAtoi(given, &seed)) {
    seed = static_cast<uint64_t>(absl::ToUnixNanos(absl::Now()));
  }
  std::cout << "TANDEM_TEST_SEED=" << seed << std::endl;
  return seed;
}

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_RANDOM_SEED_H_
