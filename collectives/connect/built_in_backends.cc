// SPDX-License-Identifier: Apache-2.0
// The only source file that names all backends: a new one is added here, in collectives/CMakeLists.txt and in
// docs/collectives.md. The conformance test and the help of `tandem bench` follow.

#include "collectives/backends/hierarchical/hierarchical_backend.h"
#include "collectives/backends/nccl/nccl_backend.h"
#include "collectives/backends/shm/shm_backend.h"
#include "collectives/backends/tcp/tcp_backend.h"
#include "collectives/connect/backend_choice.h"
#ifdef TANDEM_FOUND_GLOO
#include "collectives/backends/gloo/gloo_backend.h"
#endif
#ifdef TANDEM_FOUND_MPI
#include "collectives/backends/mpi/mpi_backend.h"
#endif

namespace tandem::collectives {

std::vector<BackendFactory> BuiltInBackends() {
  std::vector<BackendFactory> backends;
  backends.push_back(ShmBackendFactory());
  backends.push_back(TcpBackendFactory());
  backends.push_back(HierarchicalBackendFactory(ShmBackendFactory(), TcpBackendFactory()));
#ifdef TANDEM_FOUND_GLOO
  backends.push_back(GlooBackendFactory());
#endif
#ifdef TANDEM_FOUND_MPI
  backends.push_back(MpiBackendFactory());
#endif
  backends.push_back(NcclBackendFactory());
  return backends;
}

}  // namespace tandem::collectives
