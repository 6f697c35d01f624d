// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_ADDRESS_H_
#define TANDEM_RPC_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::rpc {

// The address where a server listens: "host:port", "[ipv6]:port" or "unix:/path".
struct Address {
  // Not empty for a unix socket; `host` and `port` are then unused.
  std::string unix_path;
  std::string host;  // without brackets
  int port = 0;

  bool is_unix() const { return !unix_path.empty(); }
};

// Parses an address. InvalidArgument, with `text` and the expected forms, if it has none of these forms.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// Returns the host to look up for `host`: 127.0.0.1 if `host` is "localhost" and this machine cannot resolve
// that name, as in a container without /etc/hosts; else `host` itself. RFC 6761 (6.3) reserves the name for
// the loopback address. May block on a name lookup, but only for "localhost".
std::string ResolvableHost(const std::string& host);
// Returns `text`, an address in the form of ParseAddress, with its host replaced by ResolvableHost.
std::string ResolvableAddress(const Address& address, absl::string_view text);

// Returns OK if a server could bind `address` now. `text` is its form in messages. Errors: InvalidArgument
// (the host is not an address of this machine), Unavailable (in use, or not permitted). The message names the
// address and what to do. A leftover socket file on which no process listens is not an error. This check
// exists because gRPC only logs why a bind failed. May block on a name lookup.
absl::Status CheckBindable(const Address& address, absl::string_view text);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_ADDRESS_H_
