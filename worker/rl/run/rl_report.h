// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_RUN_RL_REPORT_H_
#define TANDEM_WORKER_RL_RUN_RL_REPORT_H_

// The report of runs of `tandem rl`: the final table on the screen, and the same values as JSON.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/rl/learner/learner.h"
#include "worker/rl/run/evaluation.h"

namespace tandem::rl {

// The training episodes that ended in a part of a run.
struct CurvePoint {
  uint64_t env_steps = 0;  // at the end of the part
  uint64_t episodes = 0;
  double mean_return = 0;
};

// The report of one run.
struct RlReport {
  std::string job, environment, algorithm;
  uint64_t seed = 0;       // of the environment
  uint64_t env_steps = 0;  // of all copies
  uint64_t episodes = 0, updates = 0;
  uint64_t resumed_at = 0;     // the number of steps that earlier processes have done
  double seconds = 0;          // of the training, in this process
  bool stopped_early = false;  // mean_return was reached
  bool interrupted = false;    // the run was asked to stop, in its training or its evaluation
  absl::Status failure;        // the error that ended the training; there is then no model and no evaluation
  double last_return = 0;      // mean of the last `recent` training episodes; 0 if none has ended
  uint64_t recent = 0;         // at most 100
  std::vector<std::pair<std::string, double>> figures;  // of the last update, by the tags of TensorBoard
  std::optional<LagFigures> lag;                        // of an algorithm with actors
  std::vector<CurvePoint> curve;
  Evaluation evaluation;         // of the final parameters; no returns if there was none
  uint64_t parameters_hash = 0;  // of the bits of all parameters: equal runs have equal ones
  std::string model_file;
};

// Returns the final table, for the screen: of one run, or one line for each run and the mean of those that
// were evaluated. `asked` is the number of runs that were asked for; some may not have been started.
std::string FormatRlReport(absl::Span<const RlReport> runs, size_t asked);
// Returns the same as a JSON object: that of the run if one was asked for, otherwise a list `runs` and their
// `mean`, which is absent if none was evaluated.
std::string RlReportToJson(absl::Span<const RlReport> runs, size_t asked);
// Writes the report as JSON; replaces the file atomically. Errors name the path.
absl::Status WriteRlReport(absl::Span<const RlReport> runs, size_t asked, const std::string& path);

// Makes the directory of a file that is to be written later, and tries to write a file beside it. An existing
// file stays as it is. Errors name the path.
absl::Status CheckWritable(const std::string& path);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_RUN_RL_REPORT_H_
