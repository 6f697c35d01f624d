// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_JOB_RL_SCHEMA_H_
#define TANDEM_WORKER_RL_JOB_RL_SCHEMA_H_

// Declares the fields of a job file of `tandem rl`. Private to worker/rl/job and the test of docs/rl.md.

#include "worker/job/fields.h"
#include "worker/rl/job/rl_spec.h"

namespace tandem::rl {

// Declares every field, with its value in `job`. When fields.reading(), also reports fields that contradict
// each other.
void DescribeRlJob(worker::Fields& fields, RlSpec& job);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_JOB_RL_SCHEMA_H_
