// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_NCCL_DLOPEN_API_H_
#define TANDEM_COLLECTIVES_BACKENDS_NCCL_DLOPEN_API_H_

// Loads NCCL of this machine when it is needed. It is never unloaded, because its threads may still run.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/cuda/cuda_api.h"
#include "base/cuda/library_search.h"
#include "collectives/backends/nccl/nccl_api.h"

namespace tandem::collectives::nccl {

struct Apis {
  std::shared_ptr<NcclApi> nccl;
  std::shared_ptr<cuda::CudaApi> cuda;
};

// Loads the first library of `names` ("libnccl.so.2") that can be loaded. FailedPrecondition: "libnccl.so.2
// not found (...)", or naming a function that the library lacks.
absl::StatusOr<cuda::Loaded<NcclApi>> LoadNccl(const std::vector<std::string>& names);
// Load the libraries of this machine, which base/cuda/library_search.h finds.
absl::StatusOr<cuda::Loaded<NcclApi>> LoadNccl();
absl::StatusOr<Apis> LoadApis();

}  // namespace tandem::collectives::nccl

#endif  // TANDEM_COLLECTIVES_BACKENDS_NCCL_DLOPEN_API_H_
