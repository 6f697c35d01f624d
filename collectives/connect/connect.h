// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_CONNECT_CONNECT_H_
#define TANDEM_COLLECTIVES_CONNECT_CONNECT_H_

// Connects a group's backends through a store; shared by InitProcessGroup and NewGroup.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cluster/store/store.h"
#include "collectives/backend.h"

namespace tandem::collectives {

struct GroupConnectOptions {
  std::string group;
  int rank = 0;
  int world_size = 1;
  std::string members;  // the group's ranks as ranks of the first group, as text
  std::string backend = "auto";
  std::string debug;                // the debug level's name
  bool check_fingerprints = false;  // also for backends that do not check them
  std::string interface_address;    // name or address; empty: the interface that reaches the store
  std::string host;                 // empty: ipc::HostIdentity()
  absl::Duration timeout;
  absl::Span<const BackendFactory> extra_backends;
};

struct Connection {
  struct Device {
    tandem::Device::Kind kind = tandem::Device::Kind::kCpu;
    std::string backend;                                  // the factory's name; "solo" in a world of one
    std::vector<std::unique_ptr<cluster::Store>> stores;  // used by `made`
    std::unique_ptr<Backend> made;
  };
  std::vector<RankEndpoint> peers;
  std::vector<Device> devices;
};

// Finds the other ranks through `store` (borrowed by the backends) and connects one backend for each device
// that options.backend asks for. All ranks choose the same backends. If one rank cannot use a backend, all
// ranks receive the reason; under "auto" all continue with the next candidate together. Errors are those of
// InitProcessGroup. A world of one needs no store.
absl::StatusOr<Connection> Connect(cluster::Store* store, const GroupConnectOptions& options);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CONNECT_CONNECT_H_
