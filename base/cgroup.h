// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CGROUP_H_
#define TANDEM_BASE_CGROUP_H_

// Reads the limits of this process's control group and of the groups above it; the lowest one counts.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace tandem {

// Returns the contents of a file. Tests give their own.
using FileReader = absl::FunctionRef<absl::StatusOr<std::string>(const std::string& path)>;

// Returns the memory limit in bytes, which includes shared memory; nullopt if there is none or it cannot be
// read.
std::optional<uint64_t> CgroupMemoryLimit(FileReader read);
// Returns the CPU quota in cores (2.5: two and a half cores' time); nullopt if there is none or it cannot be
// read.
std::optional<double> CgroupCoreQuota(FileReader read);

// Returns the memory that this process may use, in bytes: the least of the machine's memory, the limit of the
// control group, and RLIMIT_AS and RLIMIT_DATA.
uint64_t UsableMemory();

}  // namespace tandem

#endif  // TANDEM_BASE_CGROUP_H_
