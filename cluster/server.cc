// SPDX-License-Identifier: Apache-2.0
#include "cluster/server.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/checksummed_file.h"
#include "base/logging.h"
#include "base/status.h"
#include "cluster/metrics/http_server.h"
#include "cluster/metrics/process_metrics.h"
#include "cluster/store/remote_store.h"
#include "cluster/store/revoked_grants.h"
#include "rpc/address.h"
#include "rpc/network.h"
#include "rpc/security/epoch_gate.h"
#include "rpc/security/transport_security.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cluster {

std::string RoleAddressKey(absl::string_view role, int index) {
  return absl::StrCat("rl/", role, "/", index);
}
std::string RoleCountKey(absl::string_view role) { return absl::StrCat("rl/", role, "/count"); }

namespace {

constexpr absl::Duration kStoreTimeout = absl::Seconds(30);
constexpr absl::Duration kRegisterAgainTimeout = absl::Seconds(2);  // of one call; it is repeated
constexpr absl::Duration kAskTimeout = absl::Seconds(1);

// Returns the address at which an earlier life of this process was registered, or "".
absl::StatusOr<std::string> EarlierAddress(const Environment& env, Store* store) {
  return store->GetIfPresent(RoleAddressKey(env.role, env.role_rank), absl::Seconds(10));
}

// Returns ": replay/1 of this job serves there, process 7 of host a" if a member has that address, else "".
std::string WhoServes(rpc::Channel& store, const std::string& address) {
  v1::MembersResponse response;
  const absl::Status asked = rpc::CallProto(store, "/tandem.v1.Store/Members", v1::MembersRequest(),
                                            &response, {.timeout = kAskTimeout, .idempotent = true});
  if (!asked.ok()) return "";
  for (const v1::MemberInfo& member : response.members()) {
    if (member.last().address() != address || member.last().leaving()) continue;
    return absl::StrCat("; ", member.last().member(), " of this job serves there: process ",
                        member.last().pid(), " of host ", member.last().host());
  }
  return "";
}

}  // namespace

absl::StatusOr<ListenOptions> ChooseAddress(const ListenOptions& options, const std::string& earlier,
                                            const std::string& store, absl::string_view member) {
  if (options.listen.empty()) {
    if (!options.advertise.empty())
      return absl::InvalidArgumentError("--advertise needs --listen, with the port at which others arrive");
    if (!earlier.empty()) return ListenOptions{.listen = earlier};
    TANDEM_ASSIGN_OR_RETURN(rpc::ListenAddresses beside, rpc::ListenBeside(store, member));
    return ListenOptions{.listen = std::move(beside.listen), .advertise = std::move(beside.advertise)};
  }
  absl::StatusOr<rpc::Address> listen = rpc::ParseAddress(options.listen);
  if (!listen.ok()) return Annotate(listen.status(), "--listen");
  if (listen->is_unix() || listen->port != 0) {
    if (options.advertise.empty() || (!listen->is_unix() && !absl::StrContains(options.advertise, ':')))
      return options;
    const absl::StatusOr<rpc::Address> advertised = rpc::ParseAddress(options.advertise);
    if (!advertised.ok()) return Annotate(advertised.status(), "--advertise");
    if (!advertised->is_unix() && advertised->port == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--advertise ", options.advertise,
                       " has port 0; give the port at which others arrive, or the host alone"));
    }
    return options;
  }
  if (absl::StrContains(options.advertise, ':')) {
    return absl::InvalidArgumentError(
        absl::StrCat("--advertise ", options.advertise, " names a port, and --listen ", options.listen,
                     " has the kernel pick one; give --listen the port, or --advertise the host alone"));
  }
  if (earlier.empty()) return options;
  TANDEM_ASSIGN_OR_RETURN(const rpc::Address before, rpc::ParseAddress(earlier));
  const std::string host =
      absl::StrContains(listen->host, ':') ? absl::StrCat("[", listen->host, "]") : listen->host;
  return ListenOptions{.listen = absl::StrCat(host, ":", before.port), .advertise = options.advertise};
}

Server::Server(Member* member, ServerOptions options) : member_(member), options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(Member* member, ServerOptions options,
                                                      std::vector<rpc::Service> services) {
  using Registration = ServerOptions::Registration;
  std::unique_ptr<Server> server(new Server(member, std::move(options)));
  const ServerOptions& own = server->options_;
  const Environment& env = member->env();
  std::string earlier;
  if (own.registration == Registration::kRole) {
    RemoteStore registry(member->store_channel(), kStoreTimeout);
    TANDEM_ASSIGN_OR_RETURN(earlier, EarlierAddress(env, &registry));
  }
  ListenOptions chosen = own.address;
  if (own.registration == Registration::kRole || chosen.listen.empty()) {
    TANDEM_ASSIGN_OR_RETURN(chosen,
                            ChooseAddress(own.address, earlier, member->store_address(), member->name()));
  }
  server->gate_ = own.gate != nullptr ? own.gate : std::make_shared<rpc::EpochGate>(*env.key, env.caller());
  if (const absl::Status listens = server->Listen(chosen, std::move(services)); !listens.ok()) {
    if (!absl::IsUnavailable(listens)) return listens;
    return absl::UnavailableError(
        absl::StrCat(listens.message(), WhoServes(*member->store_channel(), chosen.listen)));
  }
  TANDEM_RETURN_IF_ERROR(server->ServeMetrics());
  if (own.registration == Registration::kRole) {
    server->keys_ = {RoleAddressKey(env.role, env.role_rank), RoleCountKey(env.role)};
    server->values_ = {server->address_, absl::StrCat(env.role_world_size)};
  } else if (own.registration == Registration::kMember) {
    server->keys_ = {member->name()};
    server->values_ = {server->address_};
  }
  server->gate_->grants().SetFetch(
      [channel = member->store_channel()](const std::function<void(rpc::GrantChecker::RevokedIds)>& done) {
        AskRevokedGrants(*channel, done);
      });
  // Before it registers: the store may lose its memory at any time after that.
  server->registration_ = member->OnStoreLost([self = server.get()] { return self->RegisterAgain(); });
  // Others ask the store whether the process at an address lives.
  member->status()->SetAddress(server->address_);
  member->ReportStatus();
  if (own.ready) TANDEM_RETURN_IF_ERROR(server->SetReady());
  return server;
}

absl::StatusOr<std::unique_ptr<Server>> Server::StartAlone(const std::string& name, ServerOptions options,
                                                           std::vector<rpc::Service> services) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const rpc::JobKey> key, rpc::ProcessKey());
  std::unique_ptr<Server> server(new Server(nullptr, std::move(options)));
  server->gate_ = std::make_shared<rpc::EpochGate>(*key, rpc::Caller{.member = name});
  TANDEM_RETURN_IF_ERROR(server->Listen(server->options_.address, std::move(services)));
  TANDEM_RETURN_IF_ERROR(server->ServeMetrics());
  if (server->options_.ready) TANDEM_RETURN_IF_ERROR(server->SetReady());
  return server;
}

absl::Status Server::Listen(const ListenOptions& chosen, std::vector<rpc::Service> services) {
  rpc::ServerOptions rpc = options_.rpc;
  rpc.listen = chosen.listen;
  rpc.gate = gate_;
  rpc.serving = false;
  TANDEM_ASSIGN_OR_RETURN(listening_, rpc::Server::Start(rpc, std::move(services)));
  TANDEM_ASSIGN_OR_RETURN(address_,
                          rpc::AdvertisedAddress(chosen.listen, chosen.advertise, listening_->port()));
  TANDEM_ASSIGN_OR_RETURN(bound_, rpc::AdvertisedAddress(chosen.listen, "", listening_->port()));
  return absl::OkStatus();
}

absl::Status Server::ServeMetrics() {
  if (!options_.metrics.access.has_value()) return absl::OkStatus();
  const auto page = [text = options_.metrics.text] {
    return text == nullptr ? ProcessMetricsText() : text() + ProcessMetricsText();
  };
  absl::StatusOr<std::unique_ptr<HttpServer>> metrics =
      HttpServer::Start({.access = *options_.metrics.access,
                         .path = "/metrics",
                         .content_type = "text/plain; version=0.0.4; charset=utf-8",
                         .page = page});
  TANDEM_RETURN_IF_ERROR(Annotate(metrics.status(), "metrics"));
  metrics_ = *std::move(metrics);
  LogInfo(absl::StrCat("metrics at port ", metrics_->port(), " of ", options_.metrics.access->host,
                       ", path /metrics"));
  return absl::OkStatus();
}

int Server::metrics_port() const { return metrics_->port(); }

absl::Status Server::SetReady() {
  {
    absl::MutexLock lock(&mutex_);
    if (drained_ || std::exchange(ready_, true)) return absl::OkStatus();
  }
  if (!keys_.empty()) {
    const absl::Status registered =
        RemoteStore(member_->store_channel(), kStoreTimeout).MultiSet(keys_, values_);
    if (!registered.ok()) {
      absl::MutexLock lock(&mutex_);
      ready_ = false;
      return registered;
    }
  }
  listening_->SetServing("", true);
  if (!options_.serving_file.empty()) {
    // The disk may be full.
    const absl::Status told = WriteFileAtomically(options_.serving_file, absl::StrCat(::getpid(), "\n"));
    if (!told.ok()) LogWarning(told.message());
  }
  if (member_ == nullptr) return absl::OkStatus();
  if (!keys_.empty()) member_->status()->SetState("serving");
  member_->SetServing(true);
  member_->ReportStatus();
  return absl::OkStatus();
}

absl::Status Server::RegisterAgain() {
  TANDEM_RETURN_IF_ERROR(member_->JoinAgain(kRegisterAgainTimeout));
  {
    absl::MutexLock lock(&mutex_);
    if (!ready_) return absl::OkStatus();
  }
  if (keys_.empty()) return absl::OkStatus();
  return RemoteStore(member_->store_channel(), kRegisterAgainTimeout).MultiSet(keys_, values_);
}

void Server::Drain() {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(drained_, true)) return;
  }
  registration_ = nullptr;
  metrics_ = nullptr;
  if (listening_ == nullptr) return;
  if (member_ != nullptr) member_->SetServing(false);
  listening_->Shutdown(absl::Seconds(1));
  gate_->grants().SetFetch(nullptr);
}

Server::~Server() { Drain(); }

absl::StatusOr<int> CountRoleServers(Store* store, absl::string_view role, absl::Duration timeout) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, store->Get(RoleCountKey(role), timeout));
  int count = 0;
  if (!absl::SimpleAtoi(text, &count) || count < 1) {
    return absl::InternalError(absl::StrCat("the store's '", RoleCountKey(role), "' is '", text, "'"));
  }
  return count;
}

absl::StatusOr<std::shared_ptr<rpc::Channel>> ConnectToRole(const Member& member, absl::string_view role,
                                                            int index, absl::Duration timeout) {
  const absl::StatusOr<std::string> address = member.store()->Get(RoleAddressKey(role, index), timeout);
  TANDEM_RETURN_IF_ERROR(Annotate(address.status(), absl::StrCat("waiting for ", role, "/", index)));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel, member.Connect(*address));
  return std::shared_ptr<rpc::Channel>(std::move(channel));
}

}  // namespace tandem::cluster
