#ifndef TANDEM_RPC_TRANSPORT_RETRY_H_
#define TANDEM_RPC_TRANSPORT_RETRY_H_

#include "absl/time/time.h"

namespace tandem::rpc {

// Exponential backoff with jitter.
struct BackoffOptions {
  absl::Duration initial = absl::Milliseconds(50);  // before the first retry
  absl::Duration max = absl::Seconds(1);            // no wait is longer, jitter included
  double multiplier = 1.6;                          // each wait over the one before it, >= 1
  double jitter = 0.2;                              // a wait is spread over +- this part of itself, in [0, 1)
};

// How long to wait before retry number `attempt` (0 for the first). `random` in [0, 1) picks the place within
// the jitter. A pure function.
absl::Duration Backoff(int attempt, const BackoffOptions& options, double random);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_TRANSPORT_RETRY_H_
