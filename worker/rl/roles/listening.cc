// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/roles/listening.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"
#include "rpc/address.h"
#include "rpc/epoch_gate.h"
#include "rpc/network.h"

namespace tandem::rl {
namespace {

// How often a server looks whether the store still knows it, and the longest time that this takes.
constexpr absl::Duration kRegistrationPeriod = absl::Seconds(1);

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

absl::StatusOr<std::unique_ptr<Listening>> Listening::Start(std::vector<rpc::Service> services,
                                                            const ListenOptions& options, RoleJob* job) {
  TANDEM_ASSIGN_OR_RETURN(const std::string earlier, job->EarlierAddress());
  TANDEM_ASSIGN_OR_RETURN(const ListenOptions chosen,
                          ChooseAddress(options, earlier, job->store().address()));
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<rpc::Server> server,
      rpc::Server::Start(
          {.listen = chosen.listen, .gate = std::make_shared<rpc::EpochGate>(job->environment().caller())},
          std::move(services)));
  TANDEM_ASSIGN_OR_RETURN(const std::string address,
                          rpc::AdvertisedAddress(chosen.listen, chosen.advertise, server->port()));
  TANDEM_RETURN_IF_ERROR(job->RegisterServer(address));
  return std::unique_ptr<Listening>(new Listening(std::move(server), address, job));
}

Listening::Listening(std::unique_ptr<rpc::Server> server, std::string address, RoleJob* job)
    : server_(std::move(server)), address_(std::move(address)), registering_([this, job] {
        while (!stop_.WaitFor(kRegistrationPeriod)) {
          const absl::Status kept = job->KeepRegistered(address_, kRegistrationPeriod);
          if (!kept.ok()) LogDebug(kept.message());
        }
      }) {}

Listening::~Listening() {
  stop_.Notify();
  registering_.join();
  server_->Shutdown(absl::Seconds(1));
}

}  // namespace tandem::rl
