// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_OCCURRENCES_H_
#define TANDEM_PS_OCCURRENCES_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace tandem::ps {

// Returns the sum of two numbers of occurrences of an id, at most 2^32 - 1.
inline uint32_t AddOccurrences(uint32_t a, uint32_t b) {
  return a + std::min(b, std::numeric_limits<uint32_t>::max() - a);
}

}  // namespace tandem::ps

#endif  // TANDEM_PS_OCCURRENCES_H_
