#ifndef TANDEM_LAUNCHER_HOST_CGROUP_H_
#define TANDEM_LAUNCHER_HOST_CGROUP_H_

// What the control group of this process, or one above it, allows.

#include <cstdint>
#include <optional>

#include "launcher/host/machine.h"

namespace tandem::launcher {

// Bytes of memory, including shared memory; none: no limit, or none that can be read.
std::optional<uint64_t> CgroupMemoryLimit(const Machine& machine);
// Cores' worth of time.
std::optional<double> CgroupCoreQuota(const Machine& machine);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_HOST_CGROUP_H_
