// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_FUZZ_ALLOCATIONS_H_
#define TANDEM_TESTS_FUZZ_ALLOCATIONS_H_

#include <cstddef>

namespace tandem::fuzz {

// Returns whether this program counts what operator new allocates. It does not under a sanitizer, which has
// its own.
bool CountsAllocations();
// Begins to measure anew.
void ResetPeak();
// Returns by how many bytes all threads together have allocated more, at most, than there were at ResetPeak.
size_t PeakSinceReset();

}  // namespace tandem::fuzz

#endif  // TANDEM_TESTS_FUZZ_ALLOCATIONS_H_
