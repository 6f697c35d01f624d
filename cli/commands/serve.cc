// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/serve.h"

#include <poll.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"
#include "cli/monitor/page_http.h"

namespace tandem::cli {

absl::Status ServeUntilSignal(const rpc::Address& listen, int bound_port, const launcher::SignalPipe& signals,
                              const ServedMetrics& metrics) {
  std::unique_ptr<PageHttp> http;
  if (metrics.port >= 0) {
    TANDEM_ASSIGN_OR_RETURN(
        http, PageHttp::Start(listen.is_unix() ? "127.0.0.1" : listen.host, metrics.port, metrics.text));
    LogInfo(absl::StrCat("metrics at port ", http->port(), ", path /metrics"));
  }
  const std::string host =
      absl::StrContains(listen.host, ':') ? absl::StrCat("[", listen.host, "]") : listen.host;
  const std::string address =
      listen.is_unix() ? absl::StrCat("unix:", listen.unix_path) : absl::StrCat(host, ":", bound_port);
  std::printf("%s\n", address.c_str());
  std::fflush(stdout);
  pollfd stop = {signals.fd(), POLLIN, 0};
  while (::poll(&stop, 1, -1) < 0 && errno == EINTR) {
  }
  return absl::OkStatus();
}

}  // namespace tandem::cli
