// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/crypto/crypto.h"
#include "base/logging.h"
#include "base/status.h"
#include "cluster/environment.h"
#include "cluster/join.h"
#include "cluster/membership/beat.h"
#include "cluster/store/etcd/etcd_channel.h"
#include "rpc/network.h"
#include "rpc/security/transport_security.h"

namespace tandem::cluster {
namespace {

std::string JoinAddress(const std::string& host, int port) {
  // An IPv6 address needs brackets that separate its colons from the port's.
  if (absl::StrContains(host, ':') && !absl::StartsWith(host, "["))
    return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

// Processes of this machine alone need no port that others can reach. Otherwise MASTER_ADDR may be a name, or
// an address that this machine does not have (a container's, behind a forwarded port); then every interface
// is served.
std::string ListenAddress(const Environment& env) {
  return rpc::IsLoopbackHost(env.master_addr) ? JoinAddress(env.master_addr, env.master_port)
                                              : rpc::ListenAddressFor(env.master_addr, env.master_port);
}

// How often the process that hosts the store looks which servers have left or died, while it waits for them.
constexpr absl::Duration kLookAgain = absl::Milliseconds(200);

std::string ClosedKey(const std::string& member) { return absl::StrCat("job/closed/", member); }

// Returns the workers and servers that may still use the store. The job goes on without a server that has
// left (`tandem ps drain`), and without a copy of a server that has died.
absl::StatusOr<std::vector<std::string>> MembersThatUse(StoreServer& server, const Environment& env) {
  std::vector<std::string> members;
  for (int rank = 0; rank < env.world_size; ++rank) members.push_back(absl::StrCat(env.role, "/", rank));
  std::set<std::string> gone;
  for (const MemberStatus& member : server.membership()->Statuses()) {
    const bool dead = member.report.replaceable && member.silent > member.lease;
    if (dead || member.left) gone.insert(member.name);
  }
  const int servers = env.num_ps * (env.ps_followers + 1);
  for (int rank = 0; rank < servers; ++rank) {
    const std::string name = absl::StrCat("ps/", rank);
    if (!gone.contains(name)) members.push_back(name);
  }
  std::vector<std::string> open;
  for (std::string& member : members) {
    TANDEM_ASSIGN_OR_RETURN(const bool closed, server.store()->Check({ClosedKey(member)}));
    if (!closed) open.push_back(std::move(member));
  }
  return open;
}

// Blocks until no member uses the store. DeadlineExceeded, naming those that do, after `timeout`.
absl::Status AwaitClosed(StoreServer& server, const Environment& env, absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> members, MembersThatUse(server, env));
    if (members.empty()) return absl::OkStatus();
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat("not done within ", absl::FormatDuration(timeout), ": ",
                                                      absl::StrJoin(members, ", ")));
    }
    std::vector<std::string> keys;
    for (const std::string& member : members) keys.push_back(ClosedKey(member));
    // Servers leave and die meanwhile.
    const absl::Status waited = server.store()->Wait(keys, std::min(left, kLookAgain));
    if (!waited.ok() && !absl::IsDeadlineExceeded(waited)) return waited;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobStore>> OpenStore(const Environment& env, absl::Duration timeout) {
  StartBeat();
  if (env.store.empty() && env.master_port == 0 &&
      (!env.hosts_store() || env.world_size > 1 || env.num_ps > 0)) {
    return absl::InvalidArgumentError(
        "MASTER_PORT=0 lets the kernel pick a port that the job's other processes cannot learn; start the "
        "job through `tandem run`, or choose a port");
  }
  std::unique_ptr<JobStore> job(new JobStore(env));
  if (!env.key.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const rpc::JobKey> key, rpc::ProcessKey());
    job->env_.key = *key;
  }
  int port = env.master_port;
  if (env.hosts_store()) {
    TANDEM_ASSIGN_OR_RETURN(job->server_,
                            StoreServer::Start(ListenAddress(env), Clock::Real(), StoreGate(*job->env_.key)));
    port = job->server_->port();
  }
  job->address_ = env.store.empty() ? JoinAddress(env.master_addr, port) : env.store;
  const absl::Time deadline = MonotonicNow() + timeout;
  if (absl::Status reached = job->Join(timeout); !reached.ok()) {
    job->closed_ = true;  // no other process has connected: there is nothing to wait for
    if (!absl::IsUnavailable(reached)) {
      return Annotate(reached, absl::StrCat("the job's store at ", job->address_));  // it has responded
    }
    return absl::Status(
        reached.code(),
        absl::StrCat(env.member(), " cannot reach the job's store at ", job->address_, " within ",
                     absl::FormatDuration(timeout),
                     env.store.empty() ? ": is rank 0 running, and are MASTER_ADDR and MASTER_PORT right? ("
                     : IsEtcdAddress(env.store) ? ": is etcd running, and is TANDEM_STORE right? ("
                                                : ": is the launcher running, and is TANDEM_STORE right? (",
                     reached.message(), ")"));
  }
  RemoteStore patient(job->channel(), std::max(deadline - MonotonicNow(), absl::Seconds(1)));
  TANDEM_RETURN_IF_ERROR(patient.Set(absl::StrCat("job/opened/", env.member()), ""));
  return job;
}

absl::Status JobStore::Join(absl::Duration timeout) {
  // A channel to a server says once who calls. With its life the process needs another one, which uses the
  // connection of the first. The name is random, because a forked process must not use its parent's
  // connection. A channel to etcd learns the life from Join.
  const bool etcd = IsEtcdAddress(address_);
  const std::string connection = absl::BytesToHexString(crypto::RandomBytes(16));
  const auto connect = [&] {
    return etcd ? ConnectEtcd(address_, env_.caller(), /*read_only=*/false)
                : rpc::ConnectGrpc(address_, {.connection = connection, .caller = env_.caller()});
  };
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, connect());
  TANDEM_ASSIGN_OR_RETURN(env_.life, JoinStore(*channel, {.member = env_.member(), .timeout = timeout}));
  if (!etcd) {
    TANDEM_ASSIGN_OR_RETURN(channel, connect());
  }
  remote_ = std::make_unique<RemoteStore>(std::move(channel), std::min(timeout, absl::Seconds(30)));
  return absl::OkStatus();
}

absl::Status JobStore::Close(absl::Duration timeout) {
  if (closed_) return absl::OkStatus();
  closed_ = true;
  if (server_ == nullptr) {
    const absl::Time deadline = MonotonicNow() + timeout;
    TANDEM_RETURN_IF_ERROR(EndLife(*channel(), env_.member(), timeout));
    // The last call: the host may stop its server once it has the key.
    RemoteStore patient(channel(), std::max(deadline - MonotonicNow(), absl::Milliseconds(1)));
    return patient.Set(ClosedKey(env_.member()), "");
  }
  TANDEM_RETURN_IF_ERROR(server_->store()->Set(ClosedKey(env_.member()), ""));
  absl::Status closed = AwaitClosed(*server_, env_, timeout);
  server_->Shutdown(absl::Seconds(1));
  return Annotate(closed, "closing the job's store before every process was done with it");
}

JobStore::~JobStore() {
  if (remote_ == nullptr) return;
  if (absl::Status closed = Close(absl::Seconds(5)); !closed.ok()) LogWarning(closed.message());
}

}  // namespace tandem::cluster
