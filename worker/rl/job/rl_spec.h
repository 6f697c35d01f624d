// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_JOB_RL_SPEC_H_
#define TANDEM_WORKER_RL_JOB_RL_SPEC_H_

// A job of `tandem rl`: the contents of its job file (rl_parser.h), checked and with defaults filled in.
// Plain values. docs/rl.md describes the fields.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "worker/rl/learner/learner.h"

namespace tandem::rl {

// The greatest seed: any whole number up to it survives a job file, in which numbers may be read as doubles.
inline constexpr uint64_t kGreatestSeed = 1'000'000'000'000'000;

struct RlSpec {
  std::string name = "rl";
  LearnerOptions learner;             // env, policy, algorithm, actors, seeds, stop.env_steps
  std::optional<double> mean_return;  // the run stops early when the last 100 episodes reach this on average
  int evaluation_episodes = 100;      // 0: no evaluation at the end
  std::string model_file;             // "runs/<name>/model.safetensors" unless the file gives one
  bool remote_inference = false;      // inference servers choose the actions; only in jobs with roles
  absl::Duration log_every = absl::Seconds(1);
  // Where the run saves its state, and how often; ZeroDuration: only when it is asked to stop. No file:
  // never.
  std::string checkpoint_file;  // "checkpoint.safetensors" beside the model unless the job gives one
  absl::Duration checkpoint_every = absl::Minutes(1);
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_JOB_RL_SPEC_H_
