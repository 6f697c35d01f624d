#ifndef TANDEM_CLI_MONITOR_METRICS_SERVER_H_
#define TANDEM_CLI_MONITOR_METRICS_SERVER_H_

// /metrics for Prometheus: the figures of a parameter server, taken from its statistics calls when somebody
// asks. docs/parameter_server.md lists the metrics.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::cli {

struct ServerMetrics {
  tandem::v1::ServerStatistics server;
  std::vector<tandem::v1::TableInfo> tables;
};

// Thread-safe. The destructor waits for a request that is being answered.
class MetricsServer {
 public:
  // Whether this build can serve metrics (prometheus-cpp was there).
  static bool available();
  // Serves http://host:port/metrics; port 0: the kernel picks. `source` is called for each request, on
  // a thread started for it; two requests may call it at once. Errors: Unavailable (cannot bind; names the
  // address), Unimplemented (built without prometheus-cpp).
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& host, int port,
                                                              std::function<ServerMetrics()> source);
  virtual ~MetricsServer() = default;
  virtual int port() const = 0;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_METRICS_SERVER_H_
