// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_EVERY_TARGET_H_
#define TANDEM_TESTS_TESTING_EVERY_TARGET_H_

#include "gtest/gtest.h"
#include "hwy/highway.h"

namespace tandem::testing {

// Calls check() once with each instruction set that Highway supports on this machine, as if it were the best
// one.
template <class Check>
void OnEveryTarget(const Check& check) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);  // also discards the previous choice
    SCOPED_TRACE(hwy::TargetName(target));
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_EVERY_TARGET_H_
