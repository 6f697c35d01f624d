// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_NOT_FINITE_H_
#define TANDEM_TESTS_PS_NOT_FINITE_H_

// Numbers that no row, rate or scale should be.

#include <limits>

namespace tandem::testing {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_PS_NOT_FINITE_H_
