// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_REPLAY_HTTP_H_
#define TANDEM_CLI_MONITOR_REPLAY_HTTP_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "replay/server/replay_server.h"

namespace tandem::cli {

// Serves the metrics of a replay server to Prometheus over HTTP. Thread-safe.
class ReplayHttp {
 public:
  // Starts to serve http://host:port/metrics; with port 0 the kernel picks one. `server` must outlive the
  // result. Returns Unavailable, with the address, if the port cannot be bound, and Unimplemented in a build
  // without prometheus-cpp, which has no HTTP server.
  static absl::StatusOr<std::unique_ptr<ReplayHttp>> Start(const std::string& host, int port,
                                                           const replay::ReplayServer* server);
  virtual ~ReplayHttp() = default;
  // Returns the bound port.
  virtual int port() const = 0;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_REPLAY_HTTP_H_
