// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_HARNESS_CPU_SECONDS_H_
#define TANDEM_BENCH_HARNESS_CPU_SECONDS_H_

#include <sys/types.h>

#include "absl/status/statusor.h"

namespace tandem::bench {

// Returns the processor time that a process has used, in seconds, summed over its threads. Unavailable if the
// process has ended.
absl::StatusOr<double> CpuSecondsOf(pid_t pid);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_CPU_SECONDS_H_
