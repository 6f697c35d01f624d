// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_BACKENDS_HIERARCHICAL_HOSTS_H_
#define TANDEM_TESTS_COLLECTIVES_BACKENDS_HIERARCHICAL_HOSTS_H_

#include <string>
#include <vector>

#include "collectives/backends/hierarchical/hierarchical_backend.h"
#include "collectives/backends/shm/shm_backend.h"
#include "collectives/backends/tcp/tcp_backend.h"

namespace tandem::collectives {

using Hosts = std::vector<std::string>;  // of each rank

// Returns the factory for shared memory within a host and TCP between hosts.
inline BackendFactory Factory() {
  return HierarchicalBackendFactory(ShmBackendFactory(), TcpBackendFactory());
}

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_BACKENDS_HIERARCHICAL_HOSTS_H_
