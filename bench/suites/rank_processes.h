#ifndef TANDEM_BENCH_SUITES_RANK_PROCESSES_H_
#define TANDEM_BENCH_SUITES_RANK_PROCESSES_H_

// The ranks of a benchmark: copies of this program.

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::bench {

// Starts this very program `ranks` times with `args`, with the environment of a launcher and a store that it
// serves itself, and waits for the end of all. Rank 0's stdout goes to stdout, all else to stderr, with the
// rank before each line. When one fails, stderr says which and how, and the others have 5 s to end before
// they are killed; all die with the calling thread. The exit code: 0, or that of the first that failed (128 +
// signal). An error when they could not be started. `names`: what each is called before its lines; "rank/N"
// where there are none.
absl::StatusOr<int> RunRanks(int ranks, const std::vector<std::string>& args,
                             const std::vector<std::string>& names = {});

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_RANK_PROCESSES_H_
