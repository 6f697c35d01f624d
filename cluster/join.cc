// SPDX-License-Identifier: Apache-2.0
#include "cluster/join.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/membership/member_process.h"
#include "cluster/store/etcd/etcd_channel.h"
#include "cluster/store/etcd/etcd_client.h"
#include "rpc/address.h"
#include "rpc/security/transport_security.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cluster {
namespace {

// How often a process that waits for a name looks whether it is free.
constexpr absl::Duration kLookForName = absl::Milliseconds(100);
// If a name is still taken after this number of leases, its holder lives.
constexpr double kNameOutlasts = 1.5;

absl::Duration Tenths(int64_t ms) { return absl::Trunc(absl::Milliseconds(ms), absl::Milliseconds(100)); }

absl::Status NameTaken(const std::string& member, const v1::MemberLife& holder, absl::Duration waited) {
  const std::string since =
      holder.heartbeats() > 0
          ? absl::StrCat(", was last heard ", absl::FormatDuration(Tenths(holder.silent_ms())), " ago")
          : "";
  return absl::AlreadyExistsError(absl::StrCat(
      member, " is there already: ", MemberProcess::FromProto(holder.process()).ToString(), " (life ",
      holder.life(), ")",
      // A store in etcd does not know when it joined.
      holder.joined_ms() > 0
          ? absl::StrCat(" joined ", absl::FormatDuration(Tenths(holder.joined_ms())), " ago")
          : "",
      since,
      waited >= absl::Seconds(1)
          ? absl::StrCat("; this process has waited ",
                         absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(100))), " for it to end")
          : "",
      ". End that process if this one shall take its place; otherwise start this one under another rank or "
      "index"));
}

}  // namespace

absl::StatusOr<int64_t> JoinStore(rpc::Channel& channel, const JoinOptions& options) {
  const absl::Time start = MonotonicNow(), deadline = start + options.timeout;
  v1::JoinRequest request;
  request.set_member(options.member);
  *request.mutable_process() = MemberProcess::Self().ToProto();
  request.set_life(options.life);
  std::optional<v1::MemberLife> first;  // as the name's holder was at the first look
  while (true) {
    v1::JoinResponse response;
    const absl::Duration left = std::max(deadline - MonotonicNow(), absl::Milliseconds(1));
    const absl::Status called = rpc::CallProto(channel, "/tandem.v1.Store/Join", request, &response,
                                               {.timeout = left, .idempotent = true});
    if (absl::IsUnimplemented(called)) {
      return absl::UnimplementedError(absl::StrCat("there is no Tandem store at ", channel.target(),
                                                   ", but another gRPC server (", called.message(), ")"));
    }
    // No server has answered in time, which RemoteStore calls Unavailable as well.
    if (absl::IsDeadlineExceeded(called)) return absl::UnavailableError(called.message());
    TANDEM_RETURN_IF_ERROR(called);
    if (!response.has_holder()) return response.life();
    const v1::MemberLife& holder = response.holder();
    const absl::Duration waited = MonotonicNow() - start;
    const ProcessState state = LookFor(MemberProcess::FromProto(holder.process()));
    if (state == ProcessState::kGone && request.replaces() != holder.life()) {
      request.set_replaces(holder.life());
      continue;
    }
    // A process without heartbeats can only be looked for.
    const bool same = first && first->life() == holder.life();
    // A store in etcd counts no heartbeats: there, only a process that lives keeps its name for so long.
    const bool outlasts =
        same && holder.lease_ms() > 0 && waited >= kNameOutlasts * absl::Milliseconds(holder.lease_ms());
    const bool alive =
        outlasts || (holder.heartbeats() == 0 ? state == ProcessState::kLives
                                              : same && first->heartbeats() != holder.heartbeats());
    if (alive || waited + kLookForName >= options.timeout) return NameTaken(options.member, holder, waited);
    if (!first || first->life() != holder.life()) first = holder;
    absl::SleepFor(kLookForName);
  }
}

absl::Status EndLife(rpc::Channel& channel, absl::string_view member, absl::Duration timeout) {
  v1::EndLifeRequest request;
  request.set_member(std::string(member));
  *request.mutable_process() = MemberProcess::Self().ToProto();
  v1::EndLifeResponse response;
  const absl::Status ended = rpc::CallProto(channel, "/tandem.v1.Store/EndLife", request, &response,
                                            {.timeout = timeout, .idempotent = true});
  return absl::IsDeadlineExceeded(ended) ? absl::UnavailableError(ended.message()) : ended;
}

absl::StatusOr<std::unique_ptr<rpc::Channel>> ConnectStore(const std::string& address, rpc::Caller caller) {
  if (IsEtcdAddress(address)) {
    TANDEM_ASSIGN_OR_RETURN(const rpc::Credential credential, rpc::ProcessCredential());
    return ConnectEtcd(address, rpc::Identified(std::move(caller), credential), /*read_only=*/false);
  }
  return rpc::ConnectGrpc(address, {.caller = std::move(caller)});
}

absl::StatusOr<std::unique_ptr<rpc::Channel>> ObserveStore(const std::string& address) {
  if (IsEtcdAddress(address)) return ConnectEtcd(address, {}, /*read_only=*/true);
  return rpc::ConnectGrpc(address);
}

absl::Status CheckStoreAddress(const std::string& address) {
  return IsEtcdAddress(address) ? ParseEtcdUrl(address).status() : rpc::ParseAddress(address).status();
}

}  // namespace tandem::cluster
