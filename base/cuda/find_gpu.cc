// SPDX-License-Identifier: Apache-2.0
#include "base/cuda/find_gpu.h"

#include "base/cuda/device_scope.h"

namespace tandem::cuda {

std::optional<int> FindGpu(CudaApi* cuda, const void* address) {
  int count = 0, gpu = 0;
  if (cuda->GetDeviceCount(&count) != kCudaSuccess) {
    cuda->GetLastError();
    count = 0;
  }
  // The question makes a context on the current GPU, which is GPU 0 in a thread that has chosen none.
  std::optional<DeviceScope> on_gpu;
  for (int i = 0; i < count && !on_gpu.has_value(); ++i) {
    if (cuda->HasPrimaryContext(i)) on_gpu.emplace(cuda, i);
  }
  MemoryKind kind = MemoryKind::kUnregistered;
  if (cuda->PointerGetAttributes(address, &kind, &gpu) != kCudaSuccess) {
    cuda->GetLastError();
    return std::nullopt;
  }
  if (kind != MemoryKind::kDevice && kind != MemoryKind::kManaged) return std::nullopt;
  return gpu;
}

}  // namespace tandem::cuda
