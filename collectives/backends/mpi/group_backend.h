#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_GROUP_BACKEND_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_GROUP_BACKEND_H_

// The backend of one group, which the plugin makes.

#include <memory>

#include "absl/status/statusor.h"
#include "collectives/backend.h"

namespace tandem::collectives::mpi {

// Makes the backend. Blocks until options.deadline. Errors: those of Engine::Get and MakeCommunicators.
absl::StatusOr<std::unique_ptr<Backend>> MakeMpiBackend(const BackendOptions& options);

// Returns OK if mpirun has started this process, or if the process has initialised MPI itself.
absl::Status CheckLaunched(const BackendOptions& options);

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_GROUP_BACKEND_H_
