// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMANDS_TRAIN_SEEDS_H_
#define TANDEM_CLI_COMMANDS_TRAIN_SEEDS_H_

// `tandem train --seeds`: trains a job once for each seed and reports the mean and the deviation of its
// quality.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::cli {

struct SeedRuns {
  std::vector<uint64_t> seeds;
  std::string job_file;
  std::string job_name;
  std::vector<std::string> overrides;  // values of --set
  std::string checkpoint_dir;          // seed N writes to its directory "seed-N"
  // Processes of each run; both 0: one process trains the whole job.
  int servers = 0, workers = 0;
  std::string report;                   // file for the figures of all runs; empty: none
  std::string predictions;              // seed N writes to this name and ".seed-N"; empty: none
  std::vector<std::string> more_flags;  // passed on to every run
  bool baselines = true;                // trained with the first seed only
};

// Returns the seeds that `text` lists: "1-5", or "1,3,10-12". InvalidArgument if it is no such list, names a
// seed twice or has more than 1000 seeds.
absl::StatusOr<std::vector<uint64_t>> ParseSeeds(absl::string_view text);

// The mean of some values, and their sample standard deviation (0 for one value).
struct Spread {
  double mean = 0;
  double deviation = 0;
};
Spread SpreadOf(const std::vector<double>& values);

// Starts `tandem train`, or `tandem run` with it, for one seed after the other, with stdout and stderr of
// this process. Then prints the test metrics of every seed, their means and deviations. Blocks until the last
// run has ended. Stops at the first run that fails, whose exit code it returns, and prints the seeds before
// it. A run ends with this process.
int TrainSeeds(const SeedRuns& runs);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMANDS_TRAIN_SEEDS_H_
