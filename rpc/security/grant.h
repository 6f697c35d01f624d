// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SECURITY_GRANT_H_
#define TANDEM_RPC_SECURITY_GRANT_H_

// Grants: a part of the rights of a job, for a process outside of it, such as one that serves predictions.
// Who has the job's key makes them, without asking a server, and servers check them with the same key. They
// are like the tokens of NATS (decentralized authentication) and Macaroons without further caveats.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/crypto/certificates.h"
#include "rpc/caller.h"
#include "rpc/grant_claims.h"
#include "rpc/security/job_key.h"

namespace tandem::rpc {

// Parses a duration such as "90s", "12h", "30d". InvalidArgument unless it is above 0 and at most 10 years.
absl::StatusOr<absl::Duration> ParseGrantDuration(absl::string_view text);

// The file of a grant: what its holder presents to servers, and certificates for TLS. It is a secret.
class Grant {
 public:
  static constexpr absl::string_view kPrefix = "tandem_grant_";

  // Makes a grant of the job with `key`. `claims.id` is drawn. InvalidArgument if a claim is out of its
  // range: an unknown role, a name or patterns that are too long, a negative quota.
  static absl::StatusOr<Grant> Make(const JobKey& key, GrantClaims claims);
  // Parses ToText(). InvalidArgument, which names `source` and does not repeat the text, if it is no grant;
  // FailedPrecondition if it has expired by this machine's clock.
  static absl::StatusOr<Grant> FromText(absl::string_view text, absl::string_view source);

  std::string ToText() const;
  const GrantClaims& claims() const { return claims_; }
  const crypto::Certificates& certificates() const { return certificates_; }
  const std::string& source() const { return source_; }
  // The id of the job's key.
  const std::string& key_id() const { return key_id_; }
  // Returns `caller` with the proof of this grant.
  Caller Identify(Caller caller) const;

 private:
  Grant() = default;
  GrantClaims claims_;
  std::string proof_;  // a GrantProof
  std::string key_id_;
  crypto::Certificates certificates_;
  std::string source_;
};

// Returns whether a caller presents a grant, true or false, rather than a job's token.
bool PresentsGrant(const Caller& caller);

// Returns the claims of the grant that `caller` presents if it was made with the key from which `grant_key`
// is derived (GrantKey). PermissionDenied if it was not. Does not look at the time.
absl::StatusOr<GrantClaims> CheckGrant(const Caller& caller, absl::string_view grant_key);
// Returns the secret with which grants of the job are signed.
std::string GrantKey(const JobKey& key);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_SECURITY_GRANT_H_
