// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/grant.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/crypto/crypto.h"
#include "base/status.h"
#include "rpc/security/transport_security.h"
#include "tandem/v1/grant.pb.h"

namespace tandem::rpc {
namespace {

constexpr size_t kGrantIdBytes = 8;
constexpr size_t kMaxName = 64;
constexpr size_t kMaxClaimsBytes = kMaxTokenBytes - 64;  // the rest is for the signature and the prefix
constexpr char kProofPrefix = 'g';                       // a job's token has 32 bytes, a proof has more
constexpr absl::Duration kLongest = absl::Hours(24 * 3653);

absl::Status CheckClaims(const GrantClaims& claims) {
  if (std::find(GrantRoles().begin(), GrantRoles().end(), claims.role) == GrantRoles().end()) {
    return absl::InvalidArgumentError(absl::StrCat("a grant's role is '", absl::CHexEscape(claims.role),
                                                   "'; expected ", absl::StrJoin(GrantRoles(), ", ")));
  }
  if (claims.name.size() > kMaxName) {
    return absl::InvalidArgumentError(
        absl::StrCat("a grant's name has ", claims.name.size(), " bytes, of at most ", kMaxName));
  }
  for (const std::string& pattern : claims.tables) {
    if (pattern.empty()) return absl::InvalidArgumentError("a grant's pattern of tables is empty");
  }
  for (const double quota : {claims.calls_per_second, claims.bytes_per_second}) {
    if (!(quota >= 0) || std::isinf(quota)) {
      return absl::InvalidArgumentError(absl::StrCat("a grant's quota is ", quota, ", must be 0 or more"));
    }
  }
  return absl::OkStatus();
}

v1::GrantClaims ToProto(const GrantClaims& claims) {
  v1::GrantClaims proto;
  proto.set_id(claims.id);
  proto.set_name(claims.name);
  proto.set_role(claims.role);
  for (const std::string& pattern : claims.tables) proto.add_tables(pattern);
  proto.set_expires_unix_seconds(absl::ToUnixSeconds(claims.expires));
  proto.set_calls_per_second(claims.calls_per_second);
  proto.set_bytes_per_second(claims.bytes_per_second);
  return proto;
}

GrantClaims FromProto(const v1::GrantClaims& proto) {
  return {.id = proto.id(),
          .name = proto.name(),
          .role = proto.role(),
          .tables = {proto.tables().begin(), proto.tables().end()},
          .expires = absl::FromUnixSeconds(proto.expires_unix_seconds()),
          .calls_per_second = proto.calls_per_second(),
          .bytes_per_second = proto.bytes_per_second()};
}

absl::StatusOr<GrantClaims> ParseClaims(const std::string& bytes, absl::string_view source) {
  v1::GrantClaims proto;
  if (bytes.size() > kMaxClaimsBytes || !proto.ParseFromString(bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": the claims of the grant are damaged"));
  }
  GrantClaims claims = FromProto(proto);
  TANDEM_RETURN_IF_ERROR(Annotate(CheckClaims(claims), source));
  return claims;
}

}  // namespace

absl::StatusOr<absl::Duration> ParseGrantDuration(absl::string_view text) {
  absl::string_view digits = text;
  int64_t days = 0;
  absl::Duration parsed;
  if (absl::ConsumeSuffix(&digits, "d") && absl::SimpleAtoi(digits, &days) && days > 0 && days <= 3653) {
    return absl::Hours(24 * days);
  }
  if (absl::ParseDuration(text, &parsed) && parsed > absl::ZeroDuration() && parsed <= kLongest) {
    return parsed;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(text),
                   "\" is no time for a grant; expected such as 90s, 12h or 30d, "
                   "at most 10 years"));
}

absl::StatusOr<Grant> Grant::Make(const JobKey& key, GrantClaims claims) {
  Grant grant;
  claims.id = absl::BytesToHexString(crypto::RandomBytes(kGrantIdBytes));
  claims.expires = absl::FromUnixSeconds(absl::ToUnixSeconds(claims.expires));
  TANDEM_RETURN_IF_ERROR(CheckClaims(claims));
  v1::GrantProof proof;
  proof.set_claims(ToProto(claims).SerializeAsString());
  if (proof.claims().size() > kMaxClaimsBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the patterns of a grant need ", proof.claims().size(),
                                                   " bytes, of at most ", kMaxClaimsBytes));
  }
  proof.set_mac(crypto::HmacSha256(GrantKey(key), proof.claims()));
  grant.proof_ = proof.SerializeAsString();
  grant.key_id_ = key.Id();
  grant.source_ = absl::StrCat("a new grant of key ", key.Id());
  TANDEM_ASSIGN_OR_RETURN(grant.certificates_,
                          crypto::IssueClientCertificate(CertificateSeed(key),
                                                         absl::StrCat("grant/", claims.id), claims.expires));
  grant.claims_ = std::move(claims);
  return grant;
}

absl::StatusOr<Grant> Grant::FromText(absl::string_view text, absl::string_view source) {
  absl::string_view encoded = absl::StripAsciiWhitespace(text);
  std::string bytes;
  v1::GrantFile file;
  if (!absl::ConsumePrefix(&encoded, kPrefix) || !absl::WebSafeBase64Unescape(encoded, &bytes) ||
      !file.ParseFromString(bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(source, " has no grant: expected one line of ", kPrefix,
                                                   "..., as `tandem grant` prints it"));
  }
  Grant grant;
  TANDEM_ASSIGN_OR_RETURN(grant.claims_, ParseClaims(file.proof().claims(), source));
  if (grant.claims_.expires <= absl::Now()) {
    return absl::FailedPreconditionError(
        absl::StrCat(source, ": ", grant.claims_.ToString(), ", has expired on ",
                     absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", grant.claims_.expires, absl::UTCTimeZone()),
                     "; ask for another one"));
  }
  grant.proof_ = file.proof().SerializeAsString();
  grant.key_id_ = file.key_id();
  grant.certificates_ = {
      .authority = file.authority(), .certificate = file.certificate(), .private_key = file.private_key()};
  grant.source_ = std::string(source);
  return grant;
}

std::string Grant::ToText() const {
  v1::GrantFile file;
  file.mutable_proof()->ParseFromString(proof_);
  file.set_key_id(key_id_);
  file.set_authority(certificates_.authority);
  file.set_certificate(certificates_.certificate);
  file.set_private_key(certificates_.private_key);
  return absl::StrCat(kPrefix, absl::WebSafeBase64Escape(file.SerializeAsString()));
}

Caller Grant::Identify(Caller caller) const {
  caller.token = absl::StrCat(std::string(1, kProofPrefix), proof_);
  caller.key_id = key_id_;
  return caller;
}

bool PresentsGrant(const Caller& caller) {
  return caller.token.size() > JobKey::kBytes && caller.token[0] == kProofPrefix;
}

absl::StatusOr<GrantClaims> CheckGrant(const Caller& caller, absl::string_view grant_key) {
  v1::GrantProof proof;
  if (!PresentsGrant(caller) || grant_key.empty() || !proof.ParseFromString(caller.token.substr(1)) ||
      !crypto::SecretsEqual(proof.mac(), crypto::HmacSha256(grant_key, proof.claims()))) {
    return absl::PermissionDeniedError("the grant was not made with this job's key");
  }
  return ParseClaims(proof.claims(), "the caller");
}

std::string GrantKey(const JobKey& key) { return key.Derive("grants", JobKey::kBytes); }

}  // namespace tandem::rpc
