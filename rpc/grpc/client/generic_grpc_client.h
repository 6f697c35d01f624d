// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_CLIENT_GENERIC_GRPC_CLIENT_H_
#define TANDEM_RPC_GRPC_CLIENT_GENERIC_GRPC_CLIENT_H_

// A client of gRPC servers other than Tandem's (etcd), with headers, response streams and TLS. Clients of
// Tandem's servers use Channel (rpc/channel.h).

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace tandem::rpc {

// The credentials of a TLS connection: contents of PEM files, not their paths.
struct TlsCredentials {
  std::string ca;           // the trusted certificate authorities; empty: the system's
  std::string certificate;  // of this client, used with `key`; both empty: none is sent
  std::string key;
  std::string server_name;  // the name that the server's certificate must have; empty: the target's host
};

// The options of GenericGrpcClient::Connect.
struct GenericGrpcClientOptions {
  absl::optional<TlsCredentials> tls;  // unset: plain text
  // An idle connection is probed this often.
  absl::Duration keepalive_time = absl::Seconds(10);
  // A connection whose probe is not answered within this time is closed.
  absl::Duration keepalive_timeout = absl::Seconds(5);
};

using Headers = std::vector<std::pair<std::string, std::string>>;

// A stream of responses. The destructor ends the stream and waits for running callbacks, so it must not run
// within one.
class ResponseStream {
 public:
  virtual ~ResponseStream() = default;
};

// A connection to one server. Thread-safe. Must outlive its streams.
class GenericGrpcClient {
 public:
  // Returns a client of `target` ("host:port" or "unix:/path"). Connects when the first call needs it.
  // InvalidArgument for a malformed target or invalid credentials.
  static absl::StatusOr<std::unique_ptr<GenericGrpcClient>> Connect(
      const std::string& target, const GenericGrpcClientOptions& options = {});
  virtual ~GenericGrpcClient() = default;

  // Sends one request and returns one response, both serialised messages. Blocks, at most `timeout`. The call
  // is not retried. Also works with a streaming method that ends its stream after the first response to one
  // request. Errors: the server's; Unavailable; DeadlineExceeded.
  virtual absl::StatusOr<std::string> Call(const std::string& method, const std::string& request,
                                           const Headers& headers, absl::Duration timeout) = 0;

  // Sends one request and passes every response to `on_response`. When the stream ends, `on_end` gets the
  // reason, once, unless the stream was destroyed before. Both run on RPC threads, one at a time, and must
  // not block.
  virtual std::unique_ptr<ResponseStream> OpenStream(const std::string& method, const std::string& request,
                                                     const Headers& headers,
                                                     std::function<void(std::string)> on_response,
                                                     std::function<void(absl::Status)> on_end) = 0;

  virtual const std::string& target() const = 0;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_CLIENT_GENERIC_GRPC_CLIENT_H_
