// SPDX-License-Identifier: Apache-2.0
// Implements server_metrics.h for a build without prometheus-cpp.

#include "cli/monitor/server_metrics.h"

namespace tandem::cli {

absl::Status CheckServerMetrics() {
  return absl::UnimplementedError(
      "this `tandem` was built without prometheus-cpp (Debian: prometheus-cpp-dev): leave --metrics-port "
      "out");
}

std::string ServerMetricsText(const ServerMetrics&) { return ""; }

}  // namespace tandem::cli
