// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/replay_http.h"

#include <utility>

#include "base/status.h"
#include "cli/monitor/http_server.h"
#include "cli/monitor/replay_metrics.h"

namespace tandem::cli {
namespace {

class HttpReplayMetrics : public ReplayHttp {
 public:
  explicit HttpReplayMetrics(std::unique_ptr<HttpServer> http) : http_(std::move(http)) {}
  int port() const override { return http_->port(); }

 private:
  const std::unique_ptr<HttpServer> http_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReplayHttp>> ReplayHttp::Start(const std::string& host, int port,
                                                              const replay::ReplayServer* server) {
  absl::StatusOr<std::unique_ptr<HttpServer>> http =
      HttpServer::Start({.host = host,
                         .port = port,
                         .path = "/metrics",
                         .content_type = "text/plain; version=0.0.4; charset=utf-8",
                         .page = [server] { return ReplayMetricsText(server->State()); }});
  TANDEM_RETURN_IF_ERROR(Annotate(http.status(), "metrics"));
  return std::make_unique<HttpReplayMetrics>(*std::move(http));
}

}  // namespace tandem::cli
