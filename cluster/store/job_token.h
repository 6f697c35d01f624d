// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_JOB_TOKEN_H_
#define TANDEM_CLUSTER_STORE_JOB_TOKEN_H_

// The token of a job: a secret that its members share and present in their calls (rpc::Caller::token).
// Servers refuse methods of rpc::Right::kMember to callers without it (rpc/epoch_gate.h).
//
// A process has the token from the variable TANDEM_JOB_TOKEN. `tandem run` sets it. Without the variable, it
// gets a random token from the job's store when it joins (store/store_access.h); the token then protects the
// job only from processes that cannot reach the store.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::cluster {

inline constexpr char kJobTokenVariable[] = "TANDEM_JOB_TOKEN";

// Returns a token of 128 random bits.
std::string NewJobToken();

// Returns InvalidArgument, without the token, unless it has 16 to 64 printable ASCII characters and no blank.
absl::Status CheckJobToken(absl::string_view token);

// Returns the value of TANDEM_JOB_TOKEN in this process, or "" if it is not set. Errors: CheckJobToken.
absl::StatusOr<std::string> JobTokenFromEnv();

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_JOB_TOKEN_H_
