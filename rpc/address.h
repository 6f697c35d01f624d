#ifndef TANDEM_RPC_ADDRESS_H_
#define TANDEM_RPC_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::rpc {

// Where a server listens: "host:port", "[ipv6]:port" or "unix:/path".
struct Address {
  std::string unix_path;  // not empty: a unix socket, and the rest is unused
  std::string host;       // without brackets
  int port = 0;

  bool is_unix() const { return !unix_path.empty(); }
};

// InvalidArgument, quoting `text` and saying what was expected, when it is neither form.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// Whether a server could bind `address` now. InvalidArgument (the host is no address of this machine),
// Unavailable (it is in use, or not permitted): the message names the address and what to do. A socket file
// that nobody listens on any more is no obstacle. gRPC itself only logs why a bind failed.
absl::Status CheckBindable(const Address& address, absl::string_view text);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_ADDRESS_H_
