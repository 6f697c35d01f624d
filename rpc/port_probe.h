// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_PORT_PROBE_H_
#define TANDEM_RPC_PORT_PROBE_H_

#include <netinet/in.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tandem::rpc {

// Finds out whether a process still listens at an address. A death is seen at once where the host lives on,
// long before a silence would show it.
//
// A name server that does not answer holds the system's lookup for tens of seconds, and nothing can cancel
// it. So each name is looked up on a thread of its own, which may outlive the probe. A name has one lookup at
// a time, and later callers wait for the one under way. Thread-safe.
class PortProbe {
 public:
  // Returns the addresses of a host, without ports. Blocks for as long as it likes.
  using Lookup = std::function<absl::StatusOr<std::vector<sockaddr_storage>>(const std::string& host)>;

  // `lookup`: by default the system's.
  explicit PortProbe(Lookup lookup = nullptr);

  // Returns true if the host of `address` ("host:port" or "unix:path") is there and refuses connections: no
  // process listens. Returns false if something listens, if the host is not found or does not answer within
  // `timeout`, and on any other error. Blocks for at most `timeout`.
  bool Refuses(const std::string& address, absl::Duration timeout) const;
  // Returns true if a process accepts connections at `address`. False on any error. Blocks for at most
  // `timeout`.
  bool Accepts(const std::string& address, absl::Duration timeout) const;

 private:
  struct Lookups;
  // Returns the error of connecting to each address of the host, 0 for none.
  absl::StatusOr<std::vector<int>> ConnectErrors(const std::string& address, absl::Duration timeout) const;
  const std::shared_ptr<Lookups> lookups_;  // also of the threads that look up
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_PORT_PROBE_H_
