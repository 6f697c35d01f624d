// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_INTEGRATION_PRIMARIES_H_
#define TANDEM_TESTS_INTEGRATION_PRIMARIES_H_

// Finds the primaries of a job whose parameter servers have followers.

#include <sys/types.h>

#include "tests/integration/job_dir.h"

namespace tandem::integration {

// Waits until the shard has a primary with a follower in sync, whose process has lived `life` seconds.
// Returns the process; 0 if the job ended first, or after kTestTimeout.
pid_t AwaitPrimary(const JobDir& job, int shard, double life);

}  // namespace tandem::integration

#endif  // TANDEM_TESTS_INTEGRATION_PRIMARIES_H_
