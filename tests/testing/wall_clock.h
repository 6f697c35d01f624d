// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTING_WALL_CLOCK_H_
#define TANDEM_TESTING_WALL_CLOCK_H_

// Steps the wall clock of this process, not the machine's. A test that links tandem_testing_wall_clock
// replaces clock_gettime for itself and for the shared libraries that it uses (absl, gRPC, libstdc++).
//
// The kernel does not know of the step. A sleep until a moment of the wall clock is therefore wrong by the
// whole step: after a step forward it lasts that much longer, after a step back it ends at once.

#include "absl/time/time.h"

namespace tandem::testing {

// Steps the wall clock for the object's lifetime; the steps of several objects add up.
class WallClockStep {
 public:
  explicit WallClockStep(absl::Duration by);
  ~WallClockStep();
  WallClockStep(const WallClockStep&) = delete;
  WallClockStep& operator=(const WallClockStep&) = delete;

 private:
  const absl::Duration by_;
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTING_WALL_CLOCK_H_
