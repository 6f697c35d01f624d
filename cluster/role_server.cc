// SPDX-License-Identifier: Apache-2.0
#include "cluster/role_server.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"
#include "cluster/job_token.h"
#include "cluster/store/remote_store.h"
#include "rpc/address.h"
#include "rpc/connect.h"
#include "rpc/epoch_gate.h"
#include "rpc/network.h"

namespace tandem::cluster {

std::string RoleAddressKey(absl::string_view role, int index) {
  return absl::StrCat("rl/", role, "/", index);
}
std::string RoleCountKey(absl::string_view role) { return absl::StrCat("rl/", role, "/count"); }

namespace {

// How often a server looks whether the store still knows it, and the longest time that this takes.
constexpr absl::Duration kRegistrationPeriod = absl::Seconds(1);
constexpr absl::Duration kStoreTimeout = absl::Seconds(30);

// Returns the address at which an earlier life of this process was registered, or "".
absl::StatusOr<std::string> EarlierAddress(const Environment& env, Store* store) {
  const std::vector<std::string> key = {RoleAddressKey(env.role, env.role_rank)};
  TANDEM_ASSIGN_OR_RETURN(const bool known, store->Check(key));
  if (!known) return std::string();
  return store->Get(key[0], absl::Seconds(10));
}

// Publishes the address of a server, and how many there are of its role.
absl::Status Register(const Environment& env, const std::string& address, Store* store) {
  const std::string keys[] = {RoleAddressKey(env.role, env.role_rank), RoleCountKey(env.role)};
  const std::string values[] = {address, absl::StrCat(env.role_world_size)};
  return store->MultiSet(keys, values);
}

// Does so again if the store does not know the server: it has started again, and is empty.
absl::Status KeepRegistered(const Environment& env, const std::string& address, rpc::EpochGate* gate,
                            Store* store) {
  const std::vector<std::string> keys = {RoleAddressKey(env.role, env.role_rank), RoleCountKey(env.role)};
  TANDEM_ASSIGN_OR_RETURN(const bool known, store->Check(keys));
  if (known) return absl::OkStatus();
  // Members that have joined at the new store may have agreed on another token. They find this server once it
  // has registered, so it must let them in before.
  if (!env.token.empty()) {
    const bool given = JobTokenFromEnv().value_or("") == env.token;
    TANDEM_ASSIGN_OR_RETURN(const std::string agreed,
                            store->CompareSet(kJobTokenKey, "", given ? kTokenElsewhere : env.token));
    if (!given && agreed != kTokenElsewhere) gate->AcceptToken(agreed);
  }
  return Register(env, address, store);
}

}  // namespace

absl::StatusOr<ListenOptions> ChooseAddress(const ListenOptions& options, const std::string& earlier,
                                            const std::string& store) {
  if (options.listen.empty()) {
    if (!options.advertise.empty())
      return absl::InvalidArgumentError("--advertise needs --listen, with the port at which others arrive");
    if (!earlier.empty()) return ListenOptions{.listen = earlier};
    TANDEM_ASSIGN_OR_RETURN(const std::string host, rpc::LocalAddressFor(store));
    if (rpc::IsLoopbackHost(host)) return ListenOptions{.listen = "127.0.0.1:0"};
    return ListenOptions{.listen = rpc::ListenAddressFor(host, 0),
                         .advertise = absl::StrContains(host, ':') ? "" : host};
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

absl::StatusOr<std::unique_ptr<RoleServer>> RoleServer::Start(std::vector<rpc::Service> services,
                                                              const Environment& env,
                                                              std::shared_ptr<rpc::Channel> store,
                                                              const ListenOptions& options) {
  RemoteStore registry(store, kStoreTimeout);
  TANDEM_ASSIGN_OR_RETURN(const std::string earlier, EarlierAddress(env, &registry));
  TANDEM_ASSIGN_OR_RETURN(const ListenOptions chosen, ChooseAddress(options, earlier, registry.address()));
  const auto gate = std::make_shared<rpc::EpochGate>(env.caller());
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Server> server,
                          rpc::Server::Start({.listen = chosen.listen, .gate = gate}, std::move(services)));
  TANDEM_ASSIGN_OR_RETURN(const std::string address,
                          rpc::AdvertisedAddress(chosen.listen, chosen.advertise, server->port()));
  TANDEM_RETURN_IF_ERROR(Register(env, address, &registry));
  return std::unique_ptr<RoleServer>(new RoleServer(std::move(server), gate, address, env, std::move(store)));
}

RoleServer::RoleServer(std::unique_ptr<rpc::Server> server, std::shared_ptr<rpc::EpochGate> gate,
                       std::string address, const Environment& env, std::shared_ptr<rpc::Channel> store)
    : server_(std::move(server)),
      address_(std::move(address)),
      registering_([this, gate = std::move(gate), env, store = std::move(store)] {
        RemoteStore registry(store, kRegistrationPeriod);
        while (!stop_.WaitFor(kRegistrationPeriod)) {
          const absl::Status kept = KeepRegistered(env, address_, gate.get(), &registry);
          if (!kept.ok()) LogDebug(kept.message());
        }
      }) {}

RoleServer::~RoleServer() {
  stop_.Notify();
  registering_.join();
  server_->Shutdown(absl::Seconds(1));
}

absl::StatusOr<int> CountRoleServers(Store* store, absl::string_view role, absl::Duration timeout) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, store->Get(RoleCountKey(role), timeout));
  int count = 0;
  if (!absl::SimpleAtoi(text, &count) || count < 1) {
    return absl::InternalError(absl::StrCat("the store's '", RoleCountKey(role), "' is '", text, "'"));
  }
  return count;
}

absl::StatusOr<std::shared_ptr<rpc::Channel>> ConnectToRole(const Environment& env, Store* store,
                                                            absl::string_view role, int index,
                                                            absl::Duration timeout) {
  const absl::StatusOr<std::string> address = store->Get(RoleAddressKey(role, index), timeout);
  TANDEM_RETURN_IF_ERROR(Annotate(address.status(), absl::StrCat("waiting for ", role, "/", index)));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel,
                          rpc::Connect(*address, {.channel = {.caller = env.caller()}}));
  return std::shared_ptr<rpc::Channel>(std::move(channel));
}

}  // namespace tandem::cluster
