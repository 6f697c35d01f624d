// SPDX-License-Identifier: Apache-2.0
#include "rpc/transport/retry.h"

#include <algorithm>
#include <cmath>

namespace tandem::rpc {

absl::Duration Backoff(int attempt, const BackoffOptions& options, double random) {
  const double max = absl::ToDoubleSeconds(options.max);
  // pow() overflows to infinity for large attempts, which min() then caps.
  const double plain =
      std::min(max, absl::ToDoubleSeconds(options.initial) * std::pow(options.multiplier, attempt));
  const double spread = 1.0 + options.jitter * (2.0 * random - 1.0);
  return absl::Seconds(std::min(max, plain * spread));
}

}  // namespace tandem::rpc
