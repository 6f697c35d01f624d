// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ROLES_LEARNER_ROLE_H_
#define TANDEM_WORKER_RL_ROLES_LEARNER_ROLE_H_

#include "absl/status/statusor.h"
#include "worker/rl/job/rl_spec.h"
#include "worker/rl/roles/role_job.h"
#include "worker/rl/run/rl_report.h"
#include "worker/rl/run/rl_run.h"

namespace tandem::rl {

// The process of role `learner`: connects to the replay servers, the weights in replay/0 and the other
// learners, and trains as RunLearner does. Rank 0 prints, evaluates and saves the model; the reports of the
// others have neither. Tells the job of its errors: those of connecting, of MakeRoleLearner and of
// RunLearner.
absl::StatusOr<RlReport> RunLearnerRole(const RlSpec& spec, const RlRunOptions& options, RoleJob* job);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ROLES_LEARNER_ROLE_H_
