#ifndef TANDEM_WORKER_JOB_JOB_PARSER_H_
#define TANDEM_WORKER_JOB_JOB_PARSER_H_

// Job files: one readable YAML file says what to train, on what, and how. All functions are thread-safe and
// pure but for reading the file and the environment.
//
//   TANDEM_ASSIGN_OR_RETURN(JobSpec job, LoadJob("jobs/insteval.yaml", {"model.kind=dlrm",
//   "train.epochs=3"}));

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/job/job_spec.h"

namespace tandem::worker {

// The job that `text` describes. `file_name` is for messages. Each override is "dotted.path=value" (`--set`),
// the value again YAML ("model.hidden=[64, 32]"); overrides replace or add fields before anything is checked.
//
// Paths of data and checkpoints may begin with "~/" and hold ${NAME} or ${NAME:-value when NAME is unset};
// relative ones are relative to the current directory.
//
// InvalidArgument holds every error found, one a line, in the order of the file:
//   jobs/x.yaml:12: unknown field 'optimiser' in 'embedding'; did you mean 'optimizer'?
//   --set model.kind=dlmr: field 'kind' in 'model' is 'dlmr'; it must be one of lr, fm, ...; did you mean
//   'dlrm'?
absl::StatusOr<JobSpec> ParseJob(absl::string_view text, absl::string_view file_name,
                                 absl::Span<const std::string> overrides = {});

// Reads the file, too. NotFound when there is none.
absl::StatusOr<JobSpec> LoadJob(const std::string& path, absl::Span<const std::string> overrides = {});

// The job in full, every default spelled out, as a job file: ParseJob(JobToYaml(job)) is `job` again.
std::string JobToYaml(const JobSpec& job);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_JOB_PARSER_H_
