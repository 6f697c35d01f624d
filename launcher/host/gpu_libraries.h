// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_HOST_GPU_LIBRARIES_H_
#define TANDEM_LAUNCHER_HOST_GPU_LIBRARIES_H_

// Loads libcuda.so.1 and libnccl.so.2 at run time (dlopen); the program is not linked against them. They stay
// loaded until the process ends, because NCCL must not be unloaded.

#include "absl/status/statusor.h"
#include "launcher/host/machine.h"

namespace tandem::launcher {

// Implements Machine::FindCuda.
absl::StatusOr<Machine::Cuda> LoadCuda();
// Implements Machine::FindNccl.
absl::StatusOr<int> LoadNccl();

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_HOST_GPU_LIBRARIES_H_
