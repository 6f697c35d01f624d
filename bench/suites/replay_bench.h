// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_SUITES_REPLAY_BENCH_H_
#define TANDEM_BENCH_SUITES_REPLAY_BENCH_H_

// Times replay tables: in this process, and in a server that it starts as a process of its own.

#include "absl/status/status.h"
#include "bench/harness/replay_flags.h"

namespace tandem::bench {

// Measures the cases that the flags select and prints each. Errors: those of the flags; the server does not
// start; shared memory is not possible.
absl::Status RunReplayBench(const ReplayFlags& flags);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_REPLAY_BENCH_H_
