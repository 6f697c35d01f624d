// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_ENDPOINT_LOOKUP_H_
#define TANDEM_LAUNCHER_ENDPOINT_LOOKUP_H_

// Finds the host at which the launchers of a job meet. Kubernetes, for instance, gives the first node a name
// in DNS only when it has started, and a launcher on another node may start before.

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tandem::launcher {

// The functions that FindLocalAddress calls, on its own thread.
struct EndpointLookup {
  // Returns this machine's address on the way to "host:port": rpc::LocalAddressFor. Unavailable if the host's
  // name is not known.
  std::function<absl::StatusOr<std::string>(const std::string& address)> find;
  // Waits, and returns false if the caller wishes to end.
  std::function<bool(absl::Duration)> pause;
  // Shows a message to the user.
  std::function<void(const std::string&)> say;
};

// Returns this machine's address on the way to the first address of `endpoint` ("host:port", for etcd a list
// separated by commas) that can be found. While none can, it looks again, with pauses of at most 2 s, until
// `timeout` has passed, and then returns Unavailable with the names. Returns Cancelled once a pause returns
// false, and at once InvalidArgument for an address that is malformed. It says once that it waits.
absl::StatusOr<std::string> FindLocalAddress(const std::string& endpoint, absl::Duration timeout,
                                             const EndpointLookup& lookup);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_ENDPOINT_LOOKUP_H_
