#ifndef TANDEM_RPC_REMOTE_REFERENCE_FUNCTIONS_H_
#define TANDEM_RPC_REMOTE_REFERENCE_FUNCTIONS_H_

// What holders and owners of references ask of each other: remote functions like any other.

#include <cstdint>
#include <string>
#include <vector>

#include "rpc/remote/call/function.h"
#include "rpc/remote/references.h"

namespace tandem::rpc::remote {

// There is this fork. Also after its first renewal.
inline constexpr Function<void(ForkMessage)> kAddFork{"tandem.rref.add_fork", {.idempotent = true}};
// These forks are still held. The places in the list of those that refer to nothing any more.
inline constexpr Function<std::vector<int64_t>(std::vector<ForkMessage>)> kRenewForks{
    "tandem.rref.renew_forks", {.idempotent = true}};
// This fork is not held any more. Whether it was there.
inline constexpr Function<bool(ForkMessage)> kDeleteFork{"tandem.rref.delete_fork", {.idempotent = true}};
// The value, which is to be of the type of this name; encoded by its own type, whatever that is.
inline constexpr char kFetch[] = "tandem.rref.fetch";

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_REFERENCE_FUNCTIONS_H_
