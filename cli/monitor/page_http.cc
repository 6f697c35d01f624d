// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/page_http.h"

#include <utility>

#include "base/status.h"
#include "cli/monitor/http_server.h"
#include "cli/monitor/process_metrics.h"

namespace tandem::cli {
namespace {

class HttpPage : public PageHttp {
 public:
  explicit HttpPage(std::unique_ptr<HttpServer> http) : http_(std::move(http)) {}
  int port() const override { return http_->port(); }

 private:
  const std::unique_ptr<HttpServer> http_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PageHttp>> PageHttp::Start(const std::string& host, int port,
                                                          std::function<std::string()> page) {
  absl::StatusOr<std::unique_ptr<HttpServer>> http =
      HttpServer::Start({.host = host,
                         .port = port,
                         .path = "/metrics",
                         .content_type = "text/plain; version=0.0.4; charset=utf-8",
                         .page = [page = std::move(page)] { return page() + ProcessMetricsText(); }});
  TANDEM_RETURN_IF_ERROR(Annotate(http.status(), "metrics"));
  return std::make_unique<HttpPage>(*std::move(http));
}

}  // namespace tandem::cli
