// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_NETWORK_H_
#define TANDEM_RPC_NETWORK_H_

// Finds the address at which other machines reach this one. LocalAddressFor, ListenBeside and
// ListenAddressFor may block (name lookup).

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::rpc {

// Returns the numeric address that this machine uses to reach `target` ("host:port"), without sending
// anything. Returns 127.0.0.1 if `target` has another form (a store in this process, a unix socket).
// Unavailable if the host cannot be found or reached; the message names it.
absl::StatusOr<std::string> LocalAddressFor(const std::string& target);

// Where a process listens, and where others reach it.
struct ListenAddresses {
  std::string listen;     // "host:port" or "unix:/path"
  std::string advertise;  // the host under which others reach it; "": that of `listen`
};
// Returns where a process listens for those who use the store at `store` as it does. If the store has a unix
// socket, that is the socket `name` in the same directory ('/' becomes '-'). Otherwise it is the address of
// this machine that leads to the store, with a port that the kernel picks. Errors: those of LocalAddressFor.
absl::StatusOr<ListenAddresses> ListenBeside(const std::string& store, absl::string_view name);

// Returns the numeric address on this machine that `text` denotes: an address, or the name of an interface
// ("eth0"). InvalidArgument if there is none; the message lists this machine's interfaces.
absl::StatusOr<std::string> ResolveLocalAddress(const std::string& text);

// Returns the address "host:port" at which a server must listen so that others reach it at `host`, a name or
// address of this machine. Blocks on the name lookup. The address is that of `host`, if it is one of this
// machine's. It is "0.0.0.0:port", every interface, in these cases:
//
//   - `host` is a name that means the loopback interface here (127.0.1.1 on Debian)
//   - `host` is a name of several addresses
//   - `host` is an address that this machine does not have (a container's, behind a forwarded port)
std::string ListenAddressFor(const std::string& host, int port);

// Returns the address under which others reach a server that listens at `listen` ("host:port" or "unix:path")
// and has the port `port`. `advertise` is "", a host, or "host:port". Without it the host is that of
// `listen`, or the name of this machine if the server listens on every interface. InvalidArgument names the
// flag.
absl::StatusOr<std::string> AdvertisedAddress(const std::string& listen, const std::string& advertise,
                                              int port);

// Returns true if only processes of the same machine can reach `host`: 127.x.x.x, ::1 or "localhost".
bool IsLoopbackHost(absl::string_view host);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_NETWORK_H_
