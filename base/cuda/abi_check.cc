// SPDX-License-Identifier: Apache-2.0
// Compares cuda_api.h with the header of the real library. Compiled only if it is found, and not part of any
// library.

#include <cuda_runtime_api.h>

#include <cstddef>

#include "base/cuda/cuda_api.h"

namespace tandem::cuda {

#define SAME(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
SAME(kCudaSuccess, cudaSuccess);
SAME(kCudaInvalidResourceHandle, cudaErrorInvalidResourceHandle);
SAME(kCudaNotReady, cudaErrorNotReady);
SAME(kCudaStreamCaptureImplicit, cudaErrorStreamCaptureImplicit);
SAME(kCaptureModeRelaxed, cudaStreamCaptureModeRelaxed);
SAME(0, cudaStreamCaptureStatusNone);
SAME(MemoryKind::kUnregistered, cudaMemoryTypeUnregistered);
SAME(MemoryKind::kHost, cudaMemoryTypeHost);
SAME(MemoryKind::kDevice, cudaMemoryTypeDevice);
SAME(MemoryKind::kManaged, cudaMemoryTypeManaged);
// load_cuda.cc reads these two fields of a larger buffer.
static_assert(offsetof(cudaPointerAttributes, type) == 0 && offsetof(cudaPointerAttributes, device) == 4);
static_assert(sizeof(cudaPointerAttributes) <= 256);
SAME(1, cudaStreamNonBlocking);
SAME(2, cudaEventDisableTiming);
SAME(4, cudaMemcpyDefault);
SAME(1, cudaHostAllocPortable);

}  // namespace tandem::cuda
