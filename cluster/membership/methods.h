// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_MEMBERSHIP_METHODS_H_
#define TANDEM_CLUSTER_MEMBERSHIP_METHODS_H_

// The methods of tandem.v1.Store (proto/tandem/v1/store.proto) that concern a job's members, over a
// Membership.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/membership/membership.h"
#include "rpc/caller.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cluster {

// Returns the life, or the holder of the name.
absl::StatusOr<v1::JoinResponse> JoinMember(Membership* membership, const v1::JoinRequest& request);
absl::StatusOr<v1::EndLifeResponse> EndMemberLife(Membership* membership, const v1::EndLifeRequest& request);
// A caller's life counts if it reports about itself.
absl::StatusOr<v1::HeartbeatResponse> HearMember(Membership* membership, const v1::HeartbeatRequest& request,
                                                 const rpc::Caller& caller);
absl::StatusOr<v1::MembersResponse> ListMembers(Membership* membership);
absl::StatusOr<v1::EndJobResponse> EndJob(Membership* membership, const v1::EndJobRequest& request);

// Convert a report from and to a heartbeat.
MemberReport ReportOf(const v1::HeartbeatRequest& heartbeat);
void SetReport(absl::string_view member, absl::Duration lease, bool leaving, const MemberReport& report,
               v1::HeartbeatRequest* heartbeat);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_MEMBERSHIP_METHODS_H_
