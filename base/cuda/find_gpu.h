// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CUDA_FIND_GPU_H_
#define TANDEM_BASE_CUDA_FIND_GPU_H_

#include <optional>

#include "base/cuda/cuda_api.h"

namespace tandem::cuda {

// Returns the GPU whose memory (of cudaMalloc, or managed) has `address`; nullopt if none has. Makes no
// context if the process has a primary context on any GPU.
std::optional<int> FindGpu(CudaApi* cuda, const void* address);

}  // namespace tandem::cuda

#endif  // TANDEM_BASE_CUDA_FIND_GPU_H_
