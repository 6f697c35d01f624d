// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/roles/listening.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "rpc/address.h"
#include "rpc/epoch_gate.h"
#include "rpc/network.h"

namespace tandem::rl {

absl::StatusOr<std::unique_ptr<Listening>> Listening::Start(std::vector<rpc::Service> services,
                                                            RoleJob* job) {
  TANDEM_ASSIGN_OR_RETURN(std::string listen, job->EarlierAddress());
  std::string host;
  if (listen.empty()) {
    TANDEM_ASSIGN_OR_RETURN(host, rpc::LocalAddressFor(job->store().address()));
    listen = rpc::IsLoopbackHost(host) ? "127.0.0.1:0" : rpc::ListenAddressFor(host, 0);
  } else {
    TANDEM_ASSIGN_OR_RETURN(const rpc::Address address, rpc::ParseAddress(listen));
    host = address.host;
  }
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<rpc::Server> server,
      rpc::Server::Start(
          {.listen = listen, .gate = std::make_shared<rpc::EpochGate>(job->environment().caller())},
          std::move(services)));
  if (absl::StrContains(host, ':') && host.front() != '[') host = absl::StrCat("[", host, "]");
  const std::string address = absl::StrCat(host, ":", server->port());
  TANDEM_RETURN_IF_ERROR(job->RegisterServer(address));
  return std::unique_ptr<Listening>(new Listening(std::move(server), address));
}

}  // namespace tandem::rl
