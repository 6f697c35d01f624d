#ifndef TANDEM_BASE_ROUND_UP_H_
#define TANDEM_BASE_ROUND_UP_H_

#include <cstddef>

namespace tandem {

// The smallest multiple of `unit` (> 0) that is not below `n`. The caller keeps n + unit - 1 within 64 bits.
inline constexpr size_t RoundUp(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace tandem

#endif  // TANDEM_BASE_ROUND_UP_H_
