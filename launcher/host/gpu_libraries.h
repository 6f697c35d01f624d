// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_HOST_GPU_LIBRARIES_H_
#define TANDEM_LAUNCHER_HOST_GPU_LIBRARIES_H_

// Loads libcuda.so.1, libnccl.so.2 and libcudart at run time (dlopen); the program is not linked against
// them. They stay loaded until the process ends, because NCCL must not be unloaded. NCCL and libcudart are
// those that backend nccl takes (base/cuda/library_search.h).

#include "absl/status/statusor.h"
#include "launcher/host/machine.h"

namespace tandem::launcher {

// Implements Machine::FindCuda.
absl::StatusOr<Machine::Cuda> LoadCuda();
// Implements Machine::FindNccl.
absl::StatusOr<Machine::GpuLibrary> LoadNccl();
// Implements Machine::FindCudaRuntime.
absl::StatusOr<Machine::GpuLibrary> LoadCudaRuntime();

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_HOST_GPU_LIBRARIES_H_
