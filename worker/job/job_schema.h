// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_JOB_JOB_SCHEMA_H_
#define TANDEM_WORKER_JOB_JOB_SCHEMA_H_

// Declares the fields of a job file. Private to worker/job.

#include "worker/job/fields.h"
#include "worker/job/job_spec.h"

namespace tandem::worker {

// Declares every field of a job file, with its value in `job`. When fields.reading(), also reports fields
// that contradict each other.
void DescribeJob(Fields& fields, JobSpec& job);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_JOB_SCHEMA_H_
