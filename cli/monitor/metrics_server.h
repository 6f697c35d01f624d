// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_METRICS_SERVER_H_
#define TANDEM_CLI_MONITOR_METRICS_SERVER_H_

// Serves the metrics of a parameter server to Prometheus over HTTP. docs/parameter_server.md lists the
// metrics.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

// A running HTTP server. Thread-safe. The destructor blocks until a call of `source` in progress has
// returned, and closes all connections.
class MetricsServer {
 public:
  // Returns whether this build can serve metrics, which requires prometheus-cpp.
  static bool available();
  // Starts to serve http://host:port/metrics; with port 0 the kernel picks one. Each request calls `source`
  // on the server's thread. Other paths and methods are refused (cli/monitor/http_server.h). Returns
  // Unavailable, with the address, if the port cannot be bound, and Unimplemented in a build without
  // prometheus-cpp.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& host, int port,
                                                              std::function<ServerMetrics()> source);
  virtual ~MetricsServer() = default;
  // The bound port.
  virtual int port() const = 0;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_METRICS_SERVER_H_
