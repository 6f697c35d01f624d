// SPDX-License-Identifier: Apache-2.0
// Implements MetricsServer for a build without prometheus-cpp.

#include "cli/monitor/metrics_server.h"

namespace tandem::cli {

bool MetricsServer::available() { return false; }

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string&, int,
                                                                    std::function<ServerMetrics()>) {
  return absl::UnimplementedError(
      "this `tandem` was built without prometheus-cpp (Debian: prometheus-cpp-dev): leave --metrics-port "
      "out");
}

}  // namespace tandem::cli
