// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_METRICS_HTTP_SERVER_H_
#define TANDEM_CLUSTER_METRICS_HTTP_SERVER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/metrics/http_access.h"

namespace tandem::cluster {

// A minimal HTTP/1.1 server which offers one page, meant for a scraper. Each connection serves one request.
// Nothing that a client sends is kept or written to the log.
//
// All connections belong to one thread of ordinary stack size, which never blocks on a client. Memory is
// bounded by `max_connections` times the request limit and the size of the page.
//
// | request | response |
// |---|---|
// | GET or HEAD of the page, with or without a query, also as "http://host/path" | 200 |
// | a Host header with another name than HttpAccess allows, or several | 421 |
// | without the credentials of HttpAccess | 401 |
// | another path | 404 |
// | another method | 405 |
// | not HTTP/1.x | 400 |
// | a head of more than `max_request_bytes` | 431 |
// | a head that is not complete within `timeout` | 408 |
class HttpServer {
 public:
  struct Options {
    HttpAccess access;
    std::string path;                   // of the page, for example "/metrics"
    std::string content_type;           // of the page
    std::function<std::string()> page;  // returns the page; runs on the server's thread
    // The connections that are open at once. While this limit is reached, the oldest connection without a
    // complete request is closed once it is `min_age` old, so that a new client can connect.
    size_t max_connections = 64;
    absl::Duration min_age = absl::Milliseconds(500);
    size_t max_request_bytes = 8192;
    // The time that a client has to send its request, and the time it has to read the response.
    absl::Duration timeout = absl::Seconds(5);
  };

  // Returns Unavailable, with the address and the reason, if the port cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options);
  // Blocks until a call of `page` in progress has returned, then closes all connections.
  virtual ~HttpServer() = default;
  // Returns the bound port.
  virtual int port() const = 0;
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_METRICS_HTTP_SERVER_H_
