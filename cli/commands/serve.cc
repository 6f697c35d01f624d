// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/serve.h"

#include <poll.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "base/logging.h"
#include "base/status.h"
#include "cluster/environment.h"
#include "rpc/network.h"
#include "rpc/security/security_flags.h"

namespace tandem::cli {
namespace {

void PrintAddress(const std::string& address) {
  std::printf("%s\n", address.c_str());
  std::fflush(stdout);
}

}  // namespace

void AddServingFlags(CLI::App* command, ServingFlags* flags) {
  rpc::AddSecurityFlags(command);
  command->add_option("--listen", flags->listen, "host:port or unix:/path to bind; port 0: the kernel picks")
      ->default_str("127.0.0.1:0; in a job: an address that the others reach");
  command
      ->add_option("--transport", flags->transport,
                   "auto: gRPC, and shared memory with clients of this host; grpc: gRPC only")
      ->check(CLI::IsMember({"auto", "grpc"}))
      ->capture_default_str();
  AddMetricsFlags(command, &flags->metrics);
  command->add_flag("--reflection", flags->reflection, "Serve gRPC's reflection, for tools such as grpcurl");
}

absl::StatusOr<Serving> Serving::Start() {
  Serving serving;
  TANDEM_ASSIGN_OR_RETURN(serving.process_, cluster::Process::Start({.only_launcher = true}));
  const char* const role = std::getenv("TANDEM_ROLE");
  if (role == nullptr || *role == '\0' || std::getenv("RANK") != nullptr) return serving;
  TANDEM_ASSIGN_OR_RETURN(const cluster::Environment env, cluster::Environment::FromEnv());
  if (env.worker || env.role == "ps") return serving;
  TANDEM_ASSIGN_OR_RETURN(
      serving.member_, cluster::Member::Join(env, {.outlives_job = true, .process = serving.process_.get()}));
  serving.member_->EndOnSignals();
  return serving;
}

absl::Status Serving::Serve(const std::string& name, const ServingFlags& flags,
                            std::function<std::string()> metrics, std::vector<rpc::Service> services) {
  TANDEM_ASSIGN_OR_RETURN(std::optional<cluster::HttpAccess> access, ReadMetricsAccess(flags.metrics));
  cluster::ServerOptions options{.address = {.listen = flags.listen},
                                 .rpc = {.transport = flags.transport, .reflection = flags.reflection},
                                 .metrics = {.access = std::move(access), .text = std::move(metrics)}};
  if (member_ != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(server_,
                            cluster::Server::Start(member_.get(), std::move(options), std::move(services)));
    PrintAddress(server_->address());
    (void)member_->AwaitEnd();
    const absl::Status left = member_->Leave(absl::Seconds(1));
    if (!left.ok()) LogDebug(left.message());
    return absl::OkStatus();
  }
  if (options.address.listen.empty()) options.address.listen = "127.0.0.1:0";
  TANDEM_ASSIGN_OR_RETURN(server_,
                          cluster::Server::StartAlone(name, std::move(options), std::move(services)));
  PrintAddress(server_->address());
  (void)process_->AwaitSignal();
  return absl::OkStatus();
}

absl::Status ServeUntilSignal(const std::string& listen, int bound_port, const SignalPipe& signals) {
  TANDEM_ASSIGN_OR_RETURN(const std::string address, rpc::AdvertisedAddress(listen, "", bound_port));
  PrintAddress(address);
  pollfd stop = {signals.fd(), POLLIN, 0};
  while (::poll(&stop, 1, -1) < 0 && errno == EINTR) {
  }
  return absl::OkStatus();
}

}  // namespace tandem::cli
