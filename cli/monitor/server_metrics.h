// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_SERVER_METRICS_H_
#define TANDEM_CLI_MONITOR_SERVER_METRICS_H_

// The metrics of a parameter server for Prometheus. docs/parameter_server.md lists them.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tandem/v1/durability.pb.h"
#include "tandem/v1/failover.pb.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::cli {

// The values of all metrics at one moment.
struct ServerMetrics {
  tandem::v1::ServerStatistics server;
  tandem::v1::DurabilityInfo durability;
  tandem::v1::ReplicaStatus failover;  // its role is unspecified if the server has no followers
  std::vector<tandem::v1::TableInfo> tables;
};

// Returns Unimplemented if this build has no metrics of parameter servers, because it lacks prometheus-cpp.
absl::Status CheckServerMetrics();
// Returns the metrics in Prometheus' text format. Requires CheckServerMetrics() to be OK.
std::string ServerMetricsText(const ServerMetrics& figures);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_SERVER_METRICS_H_
