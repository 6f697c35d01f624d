// SPDX-License-Identifier: Apache-2.0
#include "cluster/revoked_grants.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cluster {
namespace {
constexpr char kRevokedPrefix[] = "grants/revoked/";
constexpr absl::Duration kRevokedTimeout = absl::Seconds(5);
}  // namespace

absl::Status RevokeGrant(Store* store, absl::string_view id) {
  return store->Set(absl::StrCat(kRevokedPrefix, id), "");
}

void AskRevokedGrants(rpc::Channel& channel, std::function<void(rpc::GrantChecker::RevokedIds)> done) {
  v1::StoreListRequest request;
  request.set_prefix(kRevokedPrefix);
  channel.CallAsync("/tandem.v1.Store/List", Bytes(request.SerializeAsString()),
                    {.timeout = kRevokedTimeout, .idempotent = true},
                    [done = std::move(done)](absl::StatusOr<Bytes> answer) {
                      if (!answer.ok()) return done(answer.status());
                      v1::StoreListResponse keys;
                      if (!keys.ParseFromString(answer->Flatten())) {
                        return done(absl::InternalError("the list of revoked grants is damaged"));
                      }
                      std::vector<std::string> ids;
                      for (const std::string& key : keys.keys()) {
                        ids.emplace_back(absl::StripPrefix(key, kRevokedPrefix));
                      }
                      done(std::move(ids));
                    });
}

}  // namespace tandem::cluster
