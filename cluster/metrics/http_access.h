// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_METRICS_HTTP_ACCESS_H_
#define TANDEM_CLUSTER_METRICS_HTTP_ACCESS_H_

#include <string>
#include <vector>

namespace tandem::cluster {

// Where an HTTP server listens and whom it serves.
struct HttpAccess {
  std::string host = "127.0.0.1";  // a name or an address to bind
  int port = 0;                    // 0: the kernel picks one
  // "user:password" that each request must present (basic authentication, RFC 7617). "": none.
  std::string credentials = {};
  // The names that a request's Host header may have, beside addresses, "localhost", `host` and the name of
  // this machine. Any other name may be one that a web page has made to mean this machine (DNS rebinding).
  std::vector<std::string> names = {};
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_METRICS_HTTP_ACCESS_H_
