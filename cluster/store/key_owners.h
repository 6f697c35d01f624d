// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_KEY_OWNERS_H_
#define TANDEM_CLUSTER_STORE_KEY_OWNERS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "rpc/caller.h"

namespace tandem::cluster {

// Returns OK if `caller` may change `key` of a store that serves a job, else PermissionDenied, which names
// the key, its owner and the caller. Members all have the same key, so this stops mistakes and not malice.
//
//   key                             owner
//   ps/N, ps/placement/N            the parameter servers of shard N: members ps/M with M mod shards = N
//   rl/ROLE/N                       the member ROLE/N
//   rl/ROLE/count                   the members of ROLE
//   job/opened/M, job/closed/M      the member M
//   rdzv/..., launchers/...         launchers, which have no member's name
//   others                          everyone
absl::Status CheckKeyOwner(absl::string_view key, const rpc::Caller& caller);

// Checks the keys or the queue that `request`, a message of tandem.v1.Store, changes.
template <typename Request>
absl::Status CheckKeyOwners(const Request& request, const rpc::Caller& caller) {
  if constexpr (requires { request.queue(); }) {
    return CheckKeyOwner(request.queue(), caller);
  } else if constexpr (requires { request.key(); }) {
    return CheckKeyOwner(request.key(), caller);
  } else {
    for (const std::string& key : request.keys()) TANDEM_RETURN_IF_ERROR(CheckKeyOwner(key, caller));
    return absl::OkStatus();
  }
}

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_KEY_OWNERS_H_
