#ifndef TANDEM_WORKER_JOB_JOB_SCHEMA_H_
#define TANDEM_WORKER_JOB_JOB_SCHEMA_H_

// Which fields a job file has. Private to worker/job.

#include "worker/job/fields.h"
#include "worker/job/job_spec.h"

namespace tandem::worker {

// Declares every field of a job file against `job`, and, when reading, what must hold between fields.
void DescribeJob(Fields& fields, JobSpec& job);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_JOB_SCHEMA_H_
