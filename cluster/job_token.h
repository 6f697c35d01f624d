// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_JOB_TOKEN_H_
#define TANDEM_CLUSTER_JOB_TOKEN_H_

// The token of a job: a secret that its members share and present in their calls (rpc::Caller::token).
// Servers refuse methods of rpc::Right::kMember to callers without it (rpc/epoch_gate.h).
//
// A process has the token from the variable TANDEM_JOB_TOKEN. `tandem run` sets it. Without the variable, the
// members agree on a random token in the job's store; it then protects the job only from processes that
// cannot read the store.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/store/store.h"

namespace tandem::cluster {

inline constexpr char kJobTokenVariable[] = "TANDEM_JOB_TOKEN";
// The key of the job's store with the token, or with kTokenElsewhere.
inline constexpr char kJobTokenKey[] = "job/token";
// Says that the members have the token from TANDEM_JOB_TOKEN. No token has this value.
inline constexpr char kTokenElsewhere[] = "given";

// Returns a token of 128 random bits.
std::string NewJobToken();

// Returns InvalidArgument, without the token, unless it has 16 to 64 printable ASCII characters and no blank.
absl::Status CheckJobToken(absl::string_view token);

// Returns the value of TANDEM_JOB_TOKEN in this process, or "" if it is not set. Errors: CheckJobToken.
absl::StatusOr<std::string> JobTokenFromEnv();

// Agrees with the other members of the job whose store is `store`. If *token is "", sets it to the token in
// the store, which this call puts there if it is the first. *token stays "" if the other members have a
// token from their environment: this process may then only observe and read. FailedPrecondition if *token is
// given and the other members have agreed on another one without the variable. Other errors are the store's.
absl::Status AgreeOnJobToken(Store* store, std::string* token);

// Puts the token of a member back into a store that has lost its memory. Returns "", or the token on which
// members that came first have agreed: a server must accept both. No effect if `token` is "". Errors are the
// store's.
absl::StatusOr<std::string> AgreeOnJobTokenAgain(Store* store, const std::string& token);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_JOB_TOKEN_H_
