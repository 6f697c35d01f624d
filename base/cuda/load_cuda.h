// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CUDA_LOAD_CUDA_H_
#define TANDEM_BASE_CUDA_LOAD_CUDA_H_

// Loads the CUDA runtime of this machine when it is needed. It is never unloaded, because its threads may
// still run.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/cuda/cuda_api.h"
#include "base/cuda/library_search.h"

namespace tandem::cuda {

// Loads the first library of `names` ("libcudart.so.13") that can be loaded. FailedPrecondition:
// "libcudart.so.13 not found (...)", or naming a function that the library lacks.
absl::StatusOr<Loaded<CudaApi>> LoadCuda(const std::vector<std::string>& names);
// Loads the library of this machine, which library_search.h finds.
absl::StatusOr<Loaded<CudaApi>> LoadCuda();

}  // namespace tandem::cuda

#endif  // TANDEM_BASE_CUDA_LOAD_CUDA_H_
