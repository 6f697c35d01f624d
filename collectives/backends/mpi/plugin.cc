// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/mpi/plugin.h"

#include "collectives/backends/mpi/group_backend.h"

extern "C" __attribute__((visibility("default"))) const tandem::collectives::mpi::Plugin* TandemMpiPlugin() {
  namespace mpi = tandem::collectives::mpi;
  static constexpr mpi::Plugin kPlugin = {mpi::kPluginBuild, mpi::CheckLaunched, mpi::MakeMpiBackend};
  return &kPlugin;
}
