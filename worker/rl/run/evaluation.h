// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_RUN_EVALUATION_H_
#define TANDEM_WORKER_RL_RUN_EVALUATION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/rl/envs/environment.h"
#include "worker/rl/policy/policy.h"

namespace tandem::rl {

// The returns of fresh episodes. Deviation is that of the sample.
struct Evaluation {
  std::vector<double> returns;
  double mean = 0, deviation = 0, least = 0, greatest = 0;
  double mean_length = 0;  // steps
  size_t unfinished = 0;   // episodes that were ended after kMostSteps; they count with their return so far
};

// An episode without time limit is ended after this many steps: a greedy policy may walk in a circle for
// ever.
inline constexpr int64_t kMostSteps = 100000;

// Returns the seed of the environments of Evaluate: episode i is that of copy i of a VectorEnvironment with
// this seed.
uint64_t EvaluationSeed(uint64_t seed);

// Returns InvalidArgument, which describes both, if the environment `name` has other observations or actions
// than that for which the policy was made.
absl::Status CheckEnvironment(const Policy& policy, absl::string_view name, const EnvironmentSpec& spec);

// Runs `episodes` > 0 episodes of the greedy policy, each in a copy of its own, so that short episodes do not
// count more often than long ones. The environments draw from `seed` and from nothing else. Once `stop` is
// set, returns soon, without returns. Errors are those of VectorEnvironment; InvalidArgument if the
// environment differs from the policy's in observations or actions.
absl::StatusOr<Evaluation> Evaluate(Policy& policy, const EnvironmentOptions& environment, size_t episodes,
                                    uint64_t seed, const std::atomic<bool>* stop = nullptr);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_RUN_EVALUATION_H_
