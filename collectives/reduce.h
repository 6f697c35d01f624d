#ifndef TANDEM_COLLECTIVES_REDUCE_H_
#define TANDEM_COLLECTIVES_REDUCE_H_

// Element-wise reduction in the order of the ranks. Pure functions.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/types/span.h"
#include "collectives/process_group.h"

namespace tandem::collectives {

// out[i] = op over r of sources[r][i], i in [0, n), evaluated from the first source to the last: whoever
// evaluates it gets the same bits. kAvg divides the sum by the number of sources (integers round towards
// zero). Integer sums wrap. Min and max keep the earlier source's value where they compare neither smaller
// nor larger (NaN). `out` may be one of the sources; else they must not overlap.
template <typename T>
void ReduceInRankOrder(ReduceOp op, absl::Span<const T* const> sources, size_t n, T* out) {
  using Sum = std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>;
  constexpr size_t kBlock = 1024;  // stays in the first-level cache
  T block[kBlock];
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t size = std::min(kBlock, n - begin);
    std::memcpy(block, sources[0] + begin, size * sizeof(T));
    for (size_t r = 1; r < sources.size(); ++r) {
      const T* from = sources[r] + begin;
      switch (op) {
        case ReduceOp::kSum:
        case ReduceOp::kAvg:
          for (size_t i = 0; i < size; ++i) {
            block[i] = static_cast<T>(static_cast<typename Sum::type>(block[i]) +
                                      static_cast<typename Sum::type>(from[i]));
          }
          break;
        case ReduceOp::kMin:
          for (size_t i = 0; i < size; ++i) block[i] = from[i] < block[i] ? from[i] : block[i];
          break;
        case ReduceOp::kMax:
          for (size_t i = 0; i < size; ++i) block[i] = block[i] < from[i] ? from[i] : block[i];
          break;
      }
    }
    if (op == ReduceOp::kAvg) {
      const T count = static_cast<T>(sources.size());
      for (size_t i = 0; i < size; ++i) block[i] /= count;
    }
    std::memcpy(out + begin, block, size * sizeof(T));
  }
}

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_REDUCE_H_
