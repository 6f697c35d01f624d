// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_PAGE_HTTP_H_
#define TANDEM_CLI_MONITOR_PAGE_HTTP_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tandem::cli {

// Serves a text of metrics to Prometheus over HTTP. Thread-safe.
class PageHttp {
 public:
  // Starts to serve http://host:port/metrics; with port 0 the kernel picks one. `page` returns the text, on a
  // thread of the server, until the result is destroyed. Returns Unavailable, with the address, if the port
  // cannot be bound, and Unimplemented in a build without prometheus-cpp, which has no HTTP server.
  static absl::StatusOr<std::unique_ptr<PageHttp>> Start(const std::string& host, int port,
                                                         std::function<std::string()> page);
  virtual ~PageHttp() = default;
  // Returns the bound port.
  virtual int port() const = 0;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_PAGE_HTTP_H_
