// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_ROUND_UP_H_
#define TANDEM_BASE_ROUND_UP_H_

#include <cstddef>

namespace tandem {

// Returns the smallest multiple of `unit` (> 0) that is not below `n`. Requires that n + unit - 1 fits into
// size_t.
inline constexpr size_t RoundUp(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace tandem

#endif  // TANDEM_BASE_ROUND_UP_H_
