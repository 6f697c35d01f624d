// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_NCCL_DLOPEN_API_H_
#define TANDEM_COLLECTIVES_BACKENDS_NCCL_DLOPEN_API_H_

// Loads NCCL and the CUDA runtime of this machine when they are needed. They are never unloaded, because
// their threads may still run.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/backends/nccl/cuda_api.h"
#include "collectives/backends/nccl/library_search.h"
#include "collectives/backends/nccl/nccl_api.h"

namespace tandem::collectives::nccl {

struct Apis {
  std::shared_ptr<NcclApi> nccl;
  std::shared_ptr<CudaApi> cuda;
};

// Load the first library of `names` ("libnccl.so.2") that can be loaded. FailedPrecondition: "libnccl.so.2
// not found (...)", or naming a function that the library lacks.
absl::StatusOr<Loaded<NcclApi>> LoadNccl(const std::vector<std::string>& names);
absl::StatusOr<Loaded<CudaApi>> LoadCuda(const std::vector<std::string>& names);
// Load the libraries of this machine, which library_search.h finds.
absl::StatusOr<Loaded<NcclApi>> LoadNccl();
absl::StatusOr<Loaded<CudaApi>> LoadCuda();
absl::StatusOr<Apis> LoadApis();

}  // namespace tandem::collectives::nccl

#endif  // TANDEM_COLLECTIVES_BACKENDS_NCCL_DLOPEN_API_H_
