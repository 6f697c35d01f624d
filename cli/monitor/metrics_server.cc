// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/metrics_server.h"

#include <utility>

#include "base/status.h"
#include "cli/monitor/http_server.h"
#include "cli/monitor/metric_families.h"
#include "cli/monitor/process_metrics.h"
#include "prometheus/text_serializer.h"

namespace tandem::cli {
namespace {

// prometheus-cpp makes the text. Its web server is not used: the threads of that one have 100 KiB of stack,
// of which the thread-local variables of the program's libraries (60 KiB for OpenBLAS) leave too little even
// for its own error page.
class HttpMetricsServer : public MetricsServer {
 public:
  explicit HttpMetricsServer(std::unique_ptr<HttpServer> http) : http_(std::move(http)) {}
  int port() const override { return http_->port(); }

 private:
  const std::unique_ptr<HttpServer> http_;
};

}  // namespace

bool MetricsServer::available() { return true; }

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& host, int port,
                                                                    std::function<ServerMetrics()> source) {
  absl::StatusOr<std::unique_ptr<HttpServer>> http = HttpServer::Start(
      {.host = host,
       .port = port,
       .path = "/metrics",
       .content_type = "text/plain; version=0.0.4; charset=utf-8",
       .page = [source = std::move(source)] {
         return prometheus::TextSerializer().Serialize(MakeMetricFamilies(source())) + ProcessMetricsText();
       }});
  TANDEM_RETURN_IF_ERROR(Annotate(http.status(), "metrics"));
  return std::make_unique<HttpMetricsServer>(*std::move(http));
}

}  // namespace tandem::cli
