// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/members.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/monitor/find_job.h"
#include "cluster/join.h"
#include "nlohmann/json.hpp"
#include "rpc/channel.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }
std::string OrDash(int64_t number) { return number == 0 ? "-" : absl::StrCat(number); }

std::string Seconds(absl::Duration d) { return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(d)); }

}  // namespace

const char* Member::Liveness() const {
  if (left) return "left";
  if (silent > lease) return "dead";
  return silent > lease / 2 ? "silent" : "alive";
}

std::pair<std::string, uint64_t> RoleAndIndex(const std::string& member) {
  const size_t slash = member.rfind('/');
  uint64_t index = 0;
  if (slash == std::string::npos || !absl::SimpleAtoi(member.substr(slash + 1), &index)) return {member, 0};
  return {member.substr(0, slash), index};
}

absl::StatusOr<JobMembers> AskMembers(const std::string& store, absl::Duration timeout) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Channel> channel, cluster::ObserveStore(store));
  tandem::v1::MembersResponse response;
  TANDEM_RETURN_IF_ERROR(
      StoreError(rpc::CallProto(*channel, "/tandem.v1.Store/Members", tandem::v1::MembersRequest(), &response,
                                {.timeout = timeout, .idempotent = true}),
                 store));
  JobMembers job;
  job.ended = response.job().ended();
  job.failed = response.job().failed();
  job.reason = response.job().reason();
  job.incarnation = response.job().incarnation();
  job.since_memory_lost = absl::Milliseconds(response.lost_memory_ms());
  for (const tandem::v1::MemberInfo& info : response.members()) {
    const tandem::v1::HeartbeatRequest& last = info.last();
    job.members.push_back({.name = last.member(),
                           .host = last.host(),
                           .pid = last.pid(),
                           .state = last.state(),
                           .address = last.address(),
                           .diagnostics = last.diagnostics(),
                           .step = last.step(),
                           .epoch = last.epoch(),
                           .train_epoch = last.train_epoch(),
                           .silent = absl::Milliseconds(info.silent_ms()),
                           .lease = absl::Milliseconds(last.lease_ms()),
                           .left = last.leaving(),
                           .came_back = info.came_back(),
                           .registered = last.registered_with() == job.incarnation,
                           .life = info.life()});
  }
  std::sort(job.members.begin(), job.members.end(),
            [](const Member& a, const Member& b) { return RoleAndIndex(a.name) < RoleAndIndex(b.name); });
  return job;
}

std::string MembersToText(const JobMembers& job) {
  size_t name = 6, host = 4, address = 0;
  for (const Member& member : job.members) {
    name = std::max(name, member.name.size());
    host = std::max(host, member.host.size());
    address = std::max(address, member.address.size());
  }
  // A job without servers has no column for their addresses.
  const auto column = [&](const std::string& text) {
    return address == 0 ? "" : absl::StrFormat("  %-*s", std::max<size_t>(address, 7), text);
  };
  std::string text =
      absl::StrFormat("%-*s  %-*s%s  %8s  %5s  %6s  %9s  %9s  %s\n", name, "MEMBER", host, "HOST",
                      column("ADDRESS"), "PID", "EPOCH", "PASS", "STEP", "HEARTBEAT", "STATE");
  for (const Member& m : job.members) {
    const std::string liveness = m.Liveness();
    const std::string state = liveness == "alive" ? OrDash(m.state)
                              : m.state.empty() || liveness == "left"
                                  ? liveness
                                  : absl::StrCat(liveness, ", was ", m.state);
    absl::StrAppendFormat(&text, "%-*s  %-*s%s  %8s  %5s  %6s  %9s  %9s  %s\n", name, m.name, host,
                          OrDash(m.host), column(OrDash(m.address)), OrDash(m.pid), OrDash(m.epoch),
                          OrDash(m.train_epoch), OrDash(static_cast<int64_t>(m.step)), Seconds(m.silent),
                          m.life > 1 ? absl::StrCat(state, " (life ", m.life, ")") : state);
  }
  if (job.since_memory_lost > absl::ZeroDuration()) {
    std::vector<std::string> again, not_yet;
    for (const Member& m : job.members) {
      if (m.came_back && !m.left) (m.registered ? again : not_yet).push_back(m.name);
    }
    absl::StrAppend(&text, "The store lost its memory ", Seconds(job.since_memory_lost), " ago; ",
                    again.empty() ? "nobody has" : absl::StrJoin(again, ", "), " registered again",
                    not_yet.empty() ? "" : absl::StrCat(", not yet ", absl::StrJoin(not_yet, ", ")), "\n");
  }
  if (job.ended) {
    absl::StrAppend(&text, "The job has ", job.failed ? "failed: " : "ended: ", job.reason, "\n");
  }
  return text;
}

std::string MembersToJson(const JobMembers& job) {
  Json members = Json::array();
  for (const Member& m : job.members) {
    const auto [role, index] = RoleAndIndex(m.name);
    members.push_back({{"member", m.name},
                       {"role", role},
                       {"index", index},
                       {"host", m.host},
                       {"address", m.address},
                       {"pid", m.pid},
                       {"life", m.life},
                       {"epoch", m.epoch},
                       {"train_epoch", m.train_epoch},
                       {"step", m.step},
                       {"last_heartbeat_s", absl::ToDoubleSeconds(m.silent)},
                       {"lease_s", absl::ToDoubleSeconds(m.lease)},
                       {"liveness", m.Liveness()},
                       {"came_back", m.came_back},
                       {"registered", m.registered},
                       {"state", m.state},
                       {"diagnostics", m.diagnostics}});
  }
  const Json json = {{"ended", job.ended},
                     {"failed", job.failed},
                     {"reason", job.reason},
                     {"store_incarnation", absl::StrCat(absl::Hex(job.incarnation))},
                     {"store_lost_memory_s", absl::ToDoubleSeconds(job.since_memory_lost)},
                     {"members", members}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tandem::cli
