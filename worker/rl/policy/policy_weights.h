// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_POLICY_POLICY_WEIGHTS_H_
#define TANDEM_WORKER_RL_POLICY_POLICY_WEIGHTS_H_

// Policies as models of a weight store: parameters and running averages, by name.

#include <vector>

#include "absl/status/status.h"
#include "weights/model/model.h"
#include "worker/rl/policy/policy.h"

namespace tandem::rl {

// Returns the parameters and running averages of `policy`, whose memory they borrow.
std::vector<weights::NamedTensor> TensorsOf(Policy& policy);

// Copies the values of `model` into `policy`. FailedPrecondition, with nothing changed, if the model has
// other tensors, because another job has published it.
absl::Status LoadWeights(const weights::Model& model, Policy* policy);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_POLICY_POLICY_WEIGHTS_H_
