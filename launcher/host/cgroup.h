// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_HOST_CGROUP_H_
#define TANDEM_LAUNCHER_HOST_CGROUP_H_

// Reads the limits of this process's control group and of the groups above it; the lowest one counts.

#include <cstdint>
#include <optional>

#include "launcher/host/machine.h"

namespace tandem::launcher {

// Returns the memory limit in bytes, which includes shared memory; nullopt if there is none or it cannot be
// read.
std::optional<uint64_t> CgroupMemoryLimit(const Machine& machine);
// Returns the CPU quota in cores (2.5: two and a half cores' time); nullopt if there is none or it cannot be
// read.
std::optional<double> CgroupCoreQuota(const Machine& machine);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_HOST_CGROUP_H_
