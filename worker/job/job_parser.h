// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_JOB_JOB_PARSER_H_
#define TANDEM_WORKER_JOB_JOB_PARSER_H_

// Parses job files: one YAML file says what to train, on which data, and how. All functions are thread-safe.
// They read files and environment variables and have no other side effects.
//
//   TANDEM_ASSIGN_OR_RETURN(JobSpec job, LoadJob("jobs/insteval.yaml", {"model.kind=dlrm",
//   "train.epochs=3"}));

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/job/job_spec.h"

namespace tandem::worker {

// Returns the job that `text` describes. Error messages contain `file_name`. Each override is
// "dotted.path=value"
// (`--set`), where the value is YAML too: "model.hidden=[64, 32]". Overrides replace or add fields before
// anything is checked.
//
// Paths of data and checkpoints may begin with "~/" and contain ${NAME} or ${NAME:-value when NAME is unset}.
// Relative paths of `text` and of overrides are relative to the current directory.
//
// The field `extend` names another job file. `text` then gives only what differs: its mappings are merged
// with those of the other file, and its other values replace them. Errors name the file that has the wrong
// line.
//
// An InvalidArgument error lists every mistake found, one a line, in the order of the file:
//   jobs/x.yaml:12: unknown field 'optimiser' in 'embedding'; did you mean 'optimizer'?
//   --set model.kind=dlmr: field 'kind' in 'model' is 'dlmr'; it must be one of lr, fm, ...; did you mean
//   'dlrm'?
absl::StatusOr<JobSpec> ParseJob(absl::string_view text, absl::string_view file_name,
                                 absl::Span<const std::string> overrides = {});

// Reads the job file at `path` and parses it as ParseJob does. A relative path in a file is relative to the
// directory of that file, unless it begins with a variable. NotFound if there is no file at `path`.
absl::StatusOr<JobSpec> LoadJob(const std::string& path, absl::Span<const std::string> overrides = {});

// Returns whether the file is a job of reinforcement learning, which has the field `env` and is for `tandem
// rl`. A file that cannot be read, or is no YAML, is none.
bool IsRlJob(const std::string& path);

// Returns the job as a job file in which every default is spelled out: ParseJob(JobToYaml(job)) equals `job`.
std::string JobToYaml(const JobSpec& job);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_JOB_PARSER_H_
