// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_REVOKED_GRANTS_H_
#define TANDEM_CLUSTER_STORE_REVOKED_GRANTS_H_

// Revoked grants are keys of the job's store: "grants/revoked/<id>". They last as long as the store's memory.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cluster/store/store.h"
#include "rpc/channel.h"
#include "rpc/security/grant_checker.h"

namespace tandem::cluster {

// The keys begin so.
inline constexpr char kRevokedGrants[] = "grants/revoked/";
// Returns the ids in such keys.
std::vector<std::string> IdsOfRevokedGrants(const std::vector<std::string>& keys);

// Revokes the grant `id` (rpc::GrantClaims::id) at all servers of the job that `store` serves. They know it
// within twice rpc::GrantChecker::kFetchEvery. Blocks like Store::Set, with its errors.
absl::Status RevokeGrant(Store* store, absl::string_view id);

// Asks the store behind `channel` for the revoked grants, and calls `done` with their ids. Does not block.
void AskRevokedGrants(rpc::Channel& channel, std::function<void(rpc::GrantChecker::RevokedIds)> done);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_REVOKED_GRANTS_H_
