// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_GROUP_BACKEND_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_GROUP_BACKEND_H_

// The functions behind the plugin's entry points (plugin.h): they make the backend of one group.

#include <memory>

#include "absl/status/statusor.h"
#include "collectives/backend.h"

namespace tandem::collectives::mpi {

// Makes the backend of a group. All ranks of the group must call it. Initialises MPI if the process has not
// done so (engine.h), then blocks until the other ranks have come, at most until options.deadline. The caller
// owns the result; options.store is used during the call only.
//
// Errors, after which there is no backend:
//
//   - FailedPrecondition: mpirun has started fewer processes than the group has ranks
//   - those of Engine::Get and MakeCommunicators
//   - Unavailable: a call of MPI failed, or an earlier one of this process exceeded its deadline
//
// If MPI_Comm_create_group exceeds the deadline, it continues on the engine's thread, and every later group
// of this process gets Unavailable.
absl::StatusOr<std::unique_ptr<Backend>> MakeMpiBackend(const BackendOptions& options);

// Returns OK if this process can be a rank of the group: mpirun has started it (it looks at the environment),
// or it has initialised MPI itself, or the group has only one rank. Else returns FailedPrecondition, which
// says how to start the ranks. Does not initialise MPI and does not block.
absl::Status CheckLaunched(const BackendOptions& options);

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_GROUP_BACKEND_H_
