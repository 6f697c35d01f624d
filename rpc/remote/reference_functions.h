// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_REFERENCE_FUNCTIONS_H_
#define TANDEM_RPC_REMOTE_REFERENCE_FUNCTIONS_H_

// The remote functions that holders of references call at the owners.

#include <cstdint>
#include <string>
#include <vector>

#include "rpc/remote/call/function.h"
#include "rpc/remote/references.h"

namespace tandem::rpc::remote {

// Registers a fork. May arrive after the fork's first renewal.
inline constexpr Function<void(ForkMessage)> kAddFork{"tandem.rref.add_fork", {.idempotent = true}};
// Renews forks. Returns the indices of those whose values have been released.
inline constexpr Function<std::vector<int64_t>(std::vector<ForkMessage>)> kRenewForks{
    "tandem.rref.renew_forks", {.idempotent = true}};
// Removes a fork. Returns whether it existed.
inline constexpr Function<bool(ForkMessage)> kDeleteFork{"tandem.rref.delete_fork", {.idempotent = true}};
// (fork, type name) Returns the value, encoded by its own type. Fails if the value's type has another name.
inline constexpr char kFetch[] = "tandem.rref.fetch";

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_REFERENCE_FUNCTIONS_H_
