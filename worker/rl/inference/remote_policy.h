// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_INFERENCE_REMOTE_POLICY_H_
#define TANDEM_WORKER_RL_INFERENCE_REMOTE_POLICY_H_

#include <memory>

#include "rpc/channel.h"
#include "worker/rl/actor/action_source.h"

namespace tandem::rl {

// The policy of an inference server. A call is made again after a broken connection; the policy may then have
// drawn actions that nobody takes.
class RemotePolicy : public ActionSource {
 public:
  explicit RemotePolicy(std::shared_ptr<rpc::Channel> channel) : channel_(std::move(channel)) {}

  absl::StatusOr<ActedWith> Act(absl::Span<const float> observations, size_t rows, absl::Span<float> actions,
                                absl::Span<float> log_probabilities, absl::Time deadline) override;

 private:
  const std::shared_ptr<rpc::Channel> channel_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_INFERENCE_REMOTE_POLICY_H_
