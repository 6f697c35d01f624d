// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/revoked_grants.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cluster {
namespace {
// Shorter than GrantChecker::kFetchEvery: while the store is away, what is known holds without a gap.
constexpr absl::Duration kRevokedTimeout = absl::Milliseconds(1500);
}  // namespace

std::vector<std::string> IdsOfRevokedGrants(const std::vector<std::string>& keys) {
  std::vector<std::string> ids;
  for (const std::string& key : keys) ids.emplace_back(absl::StripPrefix(key, kRevokedGrants));
  return ids;
}

absl::Status RevokeGrant(Store* store, absl::string_view id) {
  return store->Set(absl::StrCat(kRevokedGrants, id), "");
}

void AskRevokedGrants(rpc::Channel& channel, std::function<void(rpc::GrantChecker::RevokedIds)> done) {
  v1::StoreListRequest request;
  request.set_prefix(kRevokedGrants);
  channel.CallAsync("/tandem.v1.Store/List", Bytes(request.SerializeAsString()),
                    {.timeout = kRevokedTimeout, .idempotent = true},
                    [done = std::move(done)](absl::StatusOr<Bytes> answer) {
                      if (!answer.ok()) return done(answer.status());
                      v1::StoreListResponse keys;
                      if (!keys.ParseFromString(answer->Flatten())) {
                        return done(absl::InternalError("the list of revoked grants is damaged"));
                      }
                      done(IdsOfRevokedGrants({keys.keys().begin(), keys.keys().end()}));
                    });
}

}  // namespace tandem::cluster
