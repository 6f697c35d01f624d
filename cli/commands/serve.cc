// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/serve.h"

#include <poll.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"
#include "cli/monitor/page_http.h"
#include "cluster/job_token.h"
#include "rpc/address.h"
#include "rpc/network.h"

namespace tandem::cli {

absl::StatusOr<std::shared_ptr<rpc::EpochGate>> StandaloneGate(const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(std::string token, cluster::JobTokenFromEnv());
  return std::make_shared<rpc::EpochGate>(rpc::Caller{.member = name, .token = std::move(token)});
}

absl::Status ServeUntilSignal(const std::string& listen, int bound_port, const launcher::SignalPipe& signals,
                              const ServedMetrics& metrics) {
  TANDEM_ASSIGN_OR_RETURN(const std::string address, rpc::AdvertisedAddress(listen, "", bound_port));
  std::unique_ptr<PageHttp> http;
  if (metrics.port >= 0) {
    TANDEM_ASSIGN_OR_RETURN(const rpc::Address bound, rpc::ParseAddress(listen));
    TANDEM_ASSIGN_OR_RETURN(
        http, PageHttp::Start(bound.is_unix() ? "127.0.0.1" : bound.host, metrics.port, metrics.text));
    LogInfo(absl::StrCat("metrics at port ", http->port(), ", path /metrics"));
  }
  std::printf("%s\n", address.c_str());
  std::fflush(stdout);
  pollfd stop = {signals.fd(), POLLIN, 0};
  while (::poll(&stop, 1, -1) < 0 && errno == EINTR) {
  }
  return absl::OkStatus();
}

}  // namespace tandem::cli
