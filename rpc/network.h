#ifndef TANDEM_RPC_NETWORK_H_
#define TANDEM_RPC_NETWORK_H_

// Under which address of this machine others reach it. Plain functions; only LocalAddressFor may block
// (name lookup).

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::rpc {

// The numeric address of this machine from which `target` ("host:port") is reached; nothing is sent.
// 127.0.0.1 for a target that is no "host:port" (a store in this process, a unix socket). Unavailable names a
// host that cannot be found or reached.
absl::StatusOr<std::string> LocalAddressFor(const std::string& target);

// The numeric address that `text`, an address or the name of an interface ("eth0"), means on this machine.
// InvalidArgument lists what this machine has.
absl::StatusOr<std::string> ResolveLocalAddress(const std::string& text);

// Whether only processes of the same machine can reach `host`: 127.x.x.x, ::1 or the name "localhost".
bool IsLoopbackHost(absl::string_view host);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_NETWORK_H_
