// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_EARLIER_ATTEMPTS_H_
#define TANDEM_RPC_EARLIER_ATTEMPTS_H_

#include "absl/status/status.h"

namespace tandem::rpc {

// Returns whether earlier attempts at the call that ended with `status` failed with Unavailable
// (CallOptions::idempotent). The server may have executed any of them and its answer was lost, so that a
// refusal in `status` concerns the last attempt only. Errors that leave open by themselves whether the server
// has executed the call (Unavailable, DeadlineExceeded, Cancelled) do not tell.
bool HadEarlierAttempts(const absl::Status& status);

// Makes HadEarlierAttempts return true for `status`, which must not be OK. For channels.
void SetEarlierAttempts(int attempts, absl::Status* status);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_EARLIER_ATTEMPTS_H_
