#ifndef TANDEM_BENCH_HARNESS_CPU_SECONDS_H_
#define TANDEM_BENCH_HARNESS_CPU_SECONDS_H_

#include <sys/types.h>

#include "absl/status/statusor.h"

namespace tandem::bench {

// Processor time that a process has used, all its threads together, in seconds. Unavailable once it is gone.
absl::StatusOr<double> CpuSecondsOf(pid_t pid);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_CPU_SECONDS_H_
