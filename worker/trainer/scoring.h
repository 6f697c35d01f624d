// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_TRAINER_SCORING_H_
#define TANDEM_WORKER_TRAINER_SCORING_H_

// Scores examples with the model of a checkpoint. Needs no running servers: the tables are loaded into a
// parameter server of this process.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/evaluation/metrics.h"
#include "worker/job/job_spec.h"

namespace tandem::worker {

struct ScoreOptions {
  // A checkpoint, or a directory of checkpoints, of which ps::BestCheckpoint is taken.
  std::string checkpoint;
  std::string job_file;            // empty: the job in the checkpoint
  std::vector<std::string> set;    // overrides of the job's fields, as for ParseJob
  std::vector<std::string> files;  // as DatasetOptions::train_files; empty: those of the job
  // The part of the files to score, cut as the trainer cut it. Unset: the whole of `files`, or the test split
  // of the job's data.
  std::optional<Split> split;
  bool label_is_optional = false;         // see Schema
  std::optional<uint64_t> max_malformed;  // unset: that of the job
  std::vector<std::string> keep;          // Schema::kept
};

struct Scores {
  std::string checkpoint;  // path of the one that was taken
  std::string job;
  std::string model;
  uint64_t step = 0;
  uint64_t epoch = 0;
  std::vector<std::string> files;  // that were scored; patterns are not resolved
  std::optional<Split> split;      // of these files; unset: all examples
  // The order is that of the files, if `split` is unset. Examples without a label have NaN.
  ScoredExamples examples;
  bool labelled = false;  // the files have a column of labels
  uint64_t malformed_lines = 0;
  // The fields of ScoreOptions::keep, row-major, in the order of `examples`.
  std::vector<std::string> kept;
};

// Scores the examples. Of a split of the trainer's, the scores are the trainer's, bit for bit (on the same
// kind of processor). Blocks while it reads the checkpoint, all of whose rows it holds in memory, and the
// files. Errors: those of reading the checkpoint, the job and the files, and InvalidArgument if they do not
// fit each other, if the features are not those of the model, or if no job has written the checkpoint.
absl::StatusOr<Scores> ScoreCheckpoint(const ScoreOptions& options);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_SCORING_H_
