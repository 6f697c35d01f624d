// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_MEMBERSHIP_LIMITS_H_
#define TANDEM_CLUSTER_MEMBERSHIP_LIMITS_H_

// The limits and rules that all implementations of Membership share.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/membership/membership.h"

namespace tandem::cluster {

inline constexpr size_t kMostMembers = 65536;
// How long a process that has joined and sends no heartbeats keeps its name against another one.
inline constexpr absl::Duration kLeaseWithoutHeartbeats = absl::Seconds(10);

// Returns `text`, or its beginning and "..." if it is longer than 16 KiB. A peer may send any length; the
// reason is stored and sent to all members.
std::string BoundedReason(absl::string_view text);
// Cuts the texts of `report` to 256 bytes.
void BoundReport(MemberReport* report);
// Returns the reason of a job that End(member, ...) ends.
std::string EndReason(absl::string_view member, absl::string_view reason);
// Returns the reason of a job that a member's silence ends.
std::string SilenceReason(absl::string_view member, absl::Duration silence, absl::Duration lease);

// InvalidArgument unless the name has 1 to 256 bytes.
absl::Status CheckMemberName(absl::string_view member);
// InvalidArgument, naming the member, unless the lease lies in (0, 1 day].
absl::Status CheckMemberLease(absl::string_view member, absl::Duration lease);
// InvalidArgument as CheckMemberName; FailedPrecondition if `life` is none, since the process has not joined.
absl::Status CheckJoined(absl::string_view member, int64_t life);
absl::Status TooManyMembers();
// AlreadyExists: the process of `life` has another one, `process`, of `known_life` as its successor. `ago`:
// since then; zero if that is not known.
absl::Status WasReplaced(absl::string_view member, int64_t life, const MemberProcess& process,
                         int64_t known_life, absl::Duration ago);
// Returns "worker" for "worker/0".
absl::string_view RoleOfMember(absl::string_view member);
// Returns whether a member with this report had registered with an earlier incarnation of its store.
bool CameFromEarlier(const MemberReport& report, uint64_t incarnation);
// Returns whether `process` is `known`. Start time 0 of `process`: it is not known.
bool IsSameProcess(const MemberProcess& known, const MemberProcess& process);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_MEMBERSHIP_LIMITS_H_
