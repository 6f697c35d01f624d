// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_SUITES_RANK_PROCESSES_H_
#define TANDEM_BENCH_SUITES_RANK_PROCESSES_H_

// Runs the ranks of a benchmark as copies of this program.

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::bench {

// Starts this program `ranks` times with `args`, and with the environment variables that a launcher sets for
// a store that this process serves. Blocks until all processes have ended; they die with the calling thread.
//
// Rank 0's stdout goes to stdout; all other output goes to stderr, with the rank's name before each line.
// `names` are the names of the ranks, by default "rank/N".
//
// If a process fails, its name and exit code or signal go to stderr, and the other processes have 5 s to end
// before they are killed. Returns 0 or the exit code of the process that failed first (128 + signal), or an
// error if the processes could not be started.
absl::StatusOr<int> RunRanks(int ranks, const std::vector<std::string>& args,
                             const std::vector<std::string>& names = {});

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_RANK_PROCESSES_H_
