// SPDX-License-Identifier: Apache-2.0
#include "collectives/role_server.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "rpc/address.h"
#include "rpc/connect.h"
#include "rpc/epoch_gate.h"
#include "rpc/network.h"

namespace tandem::collectives {

std::string RoleAddressKey(absl::string_view role, int index) {
  return absl::StrCat("rl/", role, "/", index);
}
std::string RoleCountKey(absl::string_view role) { return absl::StrCat("rl/", role, "/count"); }

namespace {

// Returns the address at which an earlier life of this process was registered, or "".
absl::StatusOr<std::string> EarlierAddress(const Environment& env, Store* store) {
  const std::vector<std::string> key = {RoleAddressKey(env.role, env.role_rank)};
  TANDEM_ASSIGN_OR_RETURN(const bool known, store->Check(key));
  if (!known) return std::string();
  return store->Get(key[0], absl::Seconds(10));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RoleServer>> RoleServer::Start(std::vector<rpc::Service> services,
                                                              const Environment& env, Store* store) {
  TANDEM_ASSIGN_OR_RETURN(std::string listen, EarlierAddress(env, store));
  std::string host;
  if (listen.empty()) {
    TANDEM_ASSIGN_OR_RETURN(host, rpc::LocalAddressFor(store->address()));
    listen = rpc::IsLoopbackHost(host) ? "127.0.0.1:0" : rpc::ListenAddressFor(host, 0);
  } else {
    TANDEM_ASSIGN_OR_RETURN(const rpc::Address address, rpc::ParseAddress(listen));
    host = address.host;
  }
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<rpc::Server> server,
      rpc::Server::Start({.listen = listen, .gate = std::make_shared<rpc::EpochGate>(env.caller())},
                         std::move(services)));
  if (absl::StrContains(host, ':') && host.front() != '[') host = absl::StrCat("[", host, "]");
  const std::string address = absl::StrCat(host, ":", server->port());
  TANDEM_RETURN_IF_ERROR(store->Set(RoleAddressKey(env.role, env.role_rank), address));
  TANDEM_RETURN_IF_ERROR(store->Set(RoleCountKey(env.role), absl::StrCat(env.role_world_size)));
  return std::unique_ptr<RoleServer>(new RoleServer(std::move(server), address));
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

}  // namespace tandem::collectives
