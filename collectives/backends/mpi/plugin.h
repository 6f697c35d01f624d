// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_PLUGIN_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_PLUGIN_H_

// The interface between libtandem_mpi.so and the program that loads it. Both must come from one build, which
// `build` identifies.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/backend.h"

namespace tandem::collectives::mpi {

struct Plugin {
  const char* build;  // kPluginBuild of the plugin
  absl::Status (*viable)(const BackendOptions& options);
  absl::StatusOr<std::unique_ptr<Backend>> (*make)(const BackendOptions& options);
};

inline constexpr char kPluginBuild[] = TANDEM_VERSION " " __VERSION__;
inline constexpr char kPluginFile[] = "libtandem_mpi.so";
inline constexpr char kPluginSymbol[] = "TandemMpiPlugin";  // const Plugin* TandemMpiPlugin()

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_PLUGIN_H_
