// SPDX-License-Identifier: Apache-2.0
#include "cluster/membership/methods.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status.h"

namespace tandem::cluster {
namespace {

void SetJobState(JobState state, v1::HeartbeatResponse* response) {
  response->set_ended(state.ended);
  response->set_failed(state.failed);
  response->set_reason(std::move(state.reason));
}

}  // namespace

absl::StatusOr<v1::JoinResponse> JoinMember(Membership* membership, const v1::JoinRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const JoinResult joined,
                          membership->Join(request.member(), MemberProcess::FromProto(request.process()),
                                           request.life(), request.replaces()));
  v1::JoinResponse response;
  response.set_life(joined.life);
  if (joined.holder) {
    v1::MemberLife* const holder = response.mutable_holder();
    holder->set_life(joined.holder->life);
    *holder->mutable_process() = joined.holder->process.ToProto();
    holder->set_joined_ms(absl::ToInt64Milliseconds(joined.holder->joined));
    holder->set_silent_ms(absl::ToInt64Milliseconds(joined.holder->silent));
    holder->set_lease_ms(absl::ToInt64Milliseconds(joined.holder->lease));
    holder->set_heartbeats(joined.holder->heartbeats);
  }
  return response;
}

absl::StatusOr<v1::EndLifeResponse> EndMemberLife(Membership* membership, const v1::EndLifeRequest& request) {
  TANDEM_RETURN_IF_ERROR(membership->EndLife(request.member(), MemberProcess::FromProto(request.process())));
  return v1::EndLifeResponse();
}

absl::StatusOr<v1::HeartbeatResponse> HearMember(Membership* membership, const v1::HeartbeatRequest& request,
                                                 const rpc::Caller& caller) {
  TANDEM_ASSIGN_OR_RETURN(
      JobState state,
      membership->Heartbeat(request.member(), absl::Milliseconds(request.lease_ms()), request.leaving(),
                            ReportOf(request), caller.member == request.member() ? caller.life : 0));
  v1::HeartbeatResponse response;
  SetJobState(std::move(state), &response);
  response.set_incarnation(membership->incarnation());
  return response;
}

absl::StatusOr<v1::MembersResponse> ListMembers(Membership* membership) {
  TANDEM_ASSIGN_OR_RETURN(MembershipView view, membership->Look());
  v1::MembersResponse response;
  SetJobState(std::move(view.job), response.mutable_job());
  response.mutable_job()->set_incarnation(membership->incarnation());
  response.set_serving_ms(absl::ToInt64Milliseconds(view.serving));
  if (view.since_memory_lost) {
    response.set_lost_memory_ms(std::max<int64_t>(1, absl::ToInt64Milliseconds(*view.since_memory_lost)));
  }
  for (const MemberStatus& status : view.members) {
    v1::MemberInfo* const member = response.add_members();
    member->set_silent_ms(absl::ToInt64Milliseconds(status.silent));
    member->set_came_back(status.came_back);
    member->set_life(status.life);
    SetReport(status.name, status.lease, status.left, status.report, member->mutable_last());
  }
  return response;
}

absl::StatusOr<v1::EndJobResponse> EndJob(Membership* membership, const v1::EndJobRequest& request) {
  TANDEM_RETURN_IF_ERROR(membership->End(request.member(), request.failed(), request.reason()));
  return v1::EndJobResponse();
}

MemberReport ReportOf(const v1::HeartbeatRequest& heartbeat) {
  return {.state = heartbeat.state(),
          .host = heartbeat.host(),
          .pid = heartbeat.pid(),
          .diagnostics = heartbeat.diagnostics(),
          .step = heartbeat.step(),
          .epoch = heartbeat.epoch(),
          .train_epoch = heartbeat.train_epoch(),
          .replaceable = heartbeat.replaceable(),
          .address = heartbeat.address(),
          .registered_with = heartbeat.registered_with()};
}

void SetReport(absl::string_view member, absl::Duration lease, bool leaving, const MemberReport& report,
               v1::HeartbeatRequest* heartbeat) {
  heartbeat->set_member(std::string(member));
  heartbeat->set_lease_ms(absl::ToInt64Milliseconds(lease));
  heartbeat->set_leaving(leaving);
  heartbeat->set_state(report.state);
  heartbeat->set_host(report.host);
  heartbeat->set_pid(report.pid);
  heartbeat->set_diagnostics(report.diagnostics);
  heartbeat->set_step(report.step);
  heartbeat->set_epoch(report.epoch);
  heartbeat->set_train_epoch(report.train_epoch);
  heartbeat->set_replaceable(report.replaceable);
  heartbeat->set_address(report.address);
  heartbeat->set_registered_with(report.registered_with);
}

}  // namespace tandem::cluster
