#ifndef TANDEM_LAUNCHER_HOST_GPU_LIBRARIES_H_
#define TANDEM_LAUNCHER_HOST_GPU_LIBRARIES_H_

// libcuda.so.1 and libnccl.so.2, loaded when asked for: nothing here is linked. They stay loaded until the
// process ends, since NCCL must not be unloaded.

#include "absl/status/statusor.h"
#include "launcher/host/machine.h"

namespace tandem::launcher {

absl::StatusOr<Machine::Cuda> LoadCuda();
absl::StatusOr<int> LoadNccl();

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_HOST_GPU_LIBRARIES_H_
