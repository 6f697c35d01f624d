// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_TRANSPORT_RETRY_H_
#define TANDEM_RPC_TRANSPORT_RETRY_H_

#include "absl/time/time.h"

namespace tandem::rpc {

// Exponential backoff with jitter.
struct BackoffOptions {
  // The wait before the first retry.
  absl::Duration initial = absl::Milliseconds(50);
  // Upper limit of every wait, jitter included.
  absl::Duration max = absl::Seconds(1);
  // The ratio of each wait to the one before it, at least 1.
  double multiplier = 1.6;
  // Each wait is spread by up to this fraction of itself in either direction; in [0, 1).
  double jitter = 0.2;
};

// Returns how long to wait before retry number `attempt` (0 for the first). `random`, in [0, 1), chooses the
// wait within the jitter. A pure function.
absl::Duration Backoff(int attempt, const BackoffOptions& options, double random);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_TRANSPORT_RETRY_H_
