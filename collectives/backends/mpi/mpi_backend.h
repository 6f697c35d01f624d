// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_MPI_BACKEND_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_MPI_BACKEND_H_

// The backend "mpi": the ranks that one mpirun has started, or some of them, over MPI's own transports.
//
// It lives in a plugin, libtandem_mpi.so. Only the plugin is linked with libmpi: programs that never name the
// backend need no MPI installed. docs/backends_mpi_nccl.md says how to start ranks and what is supported.

#include "collectives/backend.h"

namespace tandem::collectives {

// Returns the factory of "mpi", for any number of ranks. `viable` loads the plugin from the directory that
// TANDEM_PLUGIN_PATH names, from lib/tandem next to the program's bin, or from where it was installed.
// FailedPrecondition says what is missing (the plugin, libmpi.so.40, mpirun). The plugin stays loaded.
BackendFactory MpiBackendFactory();

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_MPI_BACKEND_H_
