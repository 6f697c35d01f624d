// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_JOB_JOB_SCHEMA_PARTS_H_
#define TANDEM_WORKER_JOB_JOB_SCHEMA_PARTS_H_

// The parts of DescribeJob, one source for each, and what they have in common. Private to worker/job.

#include <string>
#include <vector>

#include "worker/job/describe_kind.h"
#include "worker/job/fields.h"
#include "worker/job/job_spec.h"

namespace tandem::worker {

// Declares the fields of `embedding`, `wide` or an entry of `tables`: job_schema_tables.cc.
void DescribeTable(Fields& f, TableSpec& table);
// Declares `tables`, and reports what contradicts the rest of the job.
void DescribeExtraTables(Fields& f, JobSpec& job);
// Report caches and replicated rows that contradict the rest of the job.
void CheckCaches(Fields& f, const JobSpec& job);
void CheckPlacements(Fields& f, const JobSpec& job);
// Declares a number of bytes, with or without a unit.
void ByteSize(Fields& f, const char* name, size_t* bytes, const char* help);
// Declares the fields of `data`: job_schema_data.cc.
void DescribeData(Fields& f, JobSpec& job);

using Names = std::vector<std::string>;

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_JOB_SCHEMA_PARTS_H_
