// SPDX-License-Identifier: Apache-2.0
// Implements MetricsServer and PageHttp for a build without prometheus-cpp.

#include "cli/monitor/metrics_server.h"
#include "cli/monitor/page_http.h"

namespace tandem::cli {
namespace {

absl::Status Unavailable() {
  return absl::UnimplementedError(
      "this `tandem` was built without prometheus-cpp (Debian: prometheus-cpp-dev): leave --metrics-port "
      "out");
}

}  // namespace

bool MetricsServer::available() { return false; }

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string&, int,
                                                                    std::function<ServerMetrics()>) {
  return Unavailable();
}

absl::StatusOr<std::unique_ptr<PageHttp>> PageHttp::Start(const std::string&, int,
                                                          std::function<std::string()>) {
  return Unavailable();
}

}  // namespace tandem::cli
