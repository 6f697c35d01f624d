// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_JOB_RL_PARSER_H_
#define TANDEM_WORKER_RL_JOB_RL_PARSER_H_

// Parses the job files of `tandem rl`. The rules of worker/job/job_parser.h hold: overrides, `extend`, paths,
// and errors that list every mistake with its line. All functions are thread-safe.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/rl/job/rl_spec.h"

namespace tandem::rl {

// Returns the job that `text` describes.
absl::StatusOr<RlSpec> ParseRlJob(absl::string_view text, absl::string_view file_name,
                                  absl::Span<const std::string> overrides = {});
// Does the same for a text that may come from anywhere, and so must not name a file to read: InvalidArgument
// if it has the field `extend`.
absl::StatusOr<RlSpec> ParseWholeRlJob(absl::string_view text, absl::string_view file_name);
// Reads the job file at `path` and parses it. NotFound if there is no file at `path`.
absl::StatusOr<RlSpec> LoadRlJob(const std::string& path, absl::Span<const std::string> overrides = {});
// Returns the job as a job file in which every default is spelled out.
std::string RlJobToYaml(const RlSpec& job);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_JOB_RL_PARSER_H_
