// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/serve.h"

#include <poll.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"
#include "cli/monitor/page_http.h"
#include "cluster/environment.h"
#include "rpc/address.h"
#include "rpc/network.h"

namespace tandem::cli {

namespace {

// Returns the server of the metrics, or nullptr if none are wanted.
absl::StatusOr<std::unique_ptr<PageHttp>> ServeMetricsNear(const std::string& listen,
                                                           const ServedMetrics& metrics) {
  if (metrics.port < 0) return nullptr;
  TANDEM_ASSIGN_OR_RETURN(const rpc::Address bound, rpc::ParseAddress(listen));
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<PageHttp> http,
      PageHttp::Start(bound.is_unix() ? "127.0.0.1" : bound.host, metrics.port, metrics.text));
  LogInfo(absl::StrCat("metrics at port ", http->port(), ", path /metrics"));
  return http;
}

void PrintAddress(const std::string& address) {
  std::printf("%s\n", address.c_str());
  std::fflush(stdout);
}

}  // namespace

absl::StatusOr<Serving> Serving::Start() {
  Serving serving;
  TANDEM_ASSIGN_OR_RETURN(serving.process, cluster::Process::Start({.only_launcher = true}));
  const char* const role = std::getenv("TANDEM_ROLE");
  if (role == nullptr || *role == '\0' || std::getenv("RANK") != nullptr) return serving;
  TANDEM_ASSIGN_OR_RETURN(const cluster::Environment env, cluster::Environment::FromEnv());
  if (env.worker || env.role == "ps") return serving;
  TANDEM_ASSIGN_OR_RETURN(
      serving.member, cluster::Member::Join(env, {.outlives_job = true, .process = serving.process.get()}));
  return serving;
}

absl::Status ServeServices(const std::string& name, const ServingFlags& flags,
                           std::vector<rpc::Service> services, Serving* serving) {
  cluster::ServerOptions options{.address = {.listen = flags.listen},
                                 .rpc = {.transport = flags.transport, .reflection = flags.reflection}};
  if (serving->member != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(serving->server, cluster::Server::Start(serving->member.get(), std::move(options),
                                                                    std::move(services)));
  } else {
    if (options.address.listen.empty()) options.address.listen = "127.0.0.1:0";
    TANDEM_ASSIGN_OR_RETURN(serving->server,
                            cluster::Server::StartAlone(name, std::move(options), std::move(services)));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<PageHttp> http,
                          ServeMetricsNear(serving->server->bound(), flags.metrics));
  PrintAddress(serving->server->address());
  if (serving->member == nullptr) {
    (void)serving->process->AwaitSignal();
    return absl::OkStatus();
  }
  (void)serving->member->AwaitEnd();
  const absl::Status left = serving->member->Leave(absl::Seconds(1));
  if (!left.ok()) LogDebug(left.message());
  return absl::OkStatus();
}

absl::Status ServeUntilSignal(const std::string& listen, int bound_port, const SignalPipe& signals,
                              const ServedMetrics& metrics) {
  TANDEM_ASSIGN_OR_RETURN(const std::string address, rpc::AdvertisedAddress(listen, "", bound_port));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<PageHttp> http, ServeMetricsNear(listen, metrics));
  PrintAddress(address);
  pollfd stop = {signals.fd(), POLLIN, 0};
  while (::poll(&stop, 1, -1) < 0 && errno == EINTR) {
  }
  return absl::OkStatus();
}

}  // namespace tandem::cli
