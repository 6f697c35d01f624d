#ifndef TANDEM_RPC_GRPC_CLIENT_GENERIC_GRPC_CLIENT_H_
#define TANDEM_RPC_GRPC_CLIENT_GENERIC_GRPC_CLIENT_H_

// A client of gRPC servers that are not ours (etcd): calls of their own with headers, streams of answers,
// TLS. What talks to Tandem's servers is a Channel (rpc/channel.h).

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

// Contents of PEM files, not their paths.
struct TlsCredentials {
  std::string ca;           // whom to trust; empty: the system's
  std::string certificate;  // of this client, with its key; both empty: it shows none
  std::string key;
  std::string server_name;  // what the server's certificate must name; empty: the target's host
};

struct GenericGrpcClientOptions {
  absl::optional<TlsCredentials> tls;                   // none: plain text
  absl::Duration keepalive_time = absl::Seconds(10);    // a silent connection is probed this often
  absl::Duration keepalive_timeout = absl::Seconds(5);  // ... and given up after this
};

using Headers = std::vector<std::pair<std::string, std::string>>;

// Answers that keep coming. Destroying it ends the stream and waits for callbacks that run: not from within
// one.
class ResponseStream {
 public:
  virtual ~ResponseStream() = default;
};

// Thread-safe. Streams must be gone before their client.
class GenericGrpcClient {
 public:
  // "host:port". Connects when the first call needs it. InvalidArgument for a malformed target or bad
  // credentials.
  static absl::StatusOr<std::unique_ptr<GenericGrpcClient>> Connect(const std::string& target,
                                                                const GenericGrpcClientOptions& options = {});
  virtual ~GenericGrpcClient() = default;

  // One request, one answer, both serialised messages. Blocks, at most `timeout`; sent once. A method that
  // answers a stream can be called so, if it ends the stream after its first answer to one request. Errors:
  // the server's; Unavailable; DeadlineExceeded.
  virtual absl::StatusOr<std::string> Call(const std::string& method, const std::string& request,
                                           const Headers& headers, absl::Duration timeout) = 0;

  // Sends one request, and gives every answer to `on_response`; when the stream has ended, why to `on_end`,
  // once, unless it is destroyed first. Both run on RPC threads, one at a time, and must not block.
  virtual std::unique_ptr<ResponseStream> OpenStream(const std::string& method, const std::string& request,
                                                   const Headers& headers,
                                                   std::function<void(std::string)> on_response,
                                                   std::function<void(absl::Status)> on_end) = 0;

  virtual const std::string& target() const = 0;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_CLIENT_GENERIC_GRPC_CLIENT_H_
