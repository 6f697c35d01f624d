// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_JOB_PARSE_FIELDS_H_
#define TANDEM_WORKER_JOB_PARSE_FIELDS_H_

// Reads a job file of any kind: those of `tandem train` (job_parser.h) and of `tandem rl` (worker/rl/job).

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/job/fields.h"
#include "worker/job/job_errors.h"

namespace tandem::worker {

// Reads `text`, which comes from `file`, merged into the files that it extends, applies `overrides`, and
// reads the fields that `describe` declares. Returns InvalidArgument with all mistakes, as ParseJob does.
// Thread-safe.
absl::Status ParseJobFields(absl::string_view text, const JobOrigin& file,
                            absl::Span<const std::string> overrides,
                            const std::function<void(Fields&)>& describe);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_PARSE_FIELDS_H_
