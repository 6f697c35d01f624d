// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ROLES_POLICY_PUBLISHER_H_
#define TANDEM_WORKER_RL_ROLES_POLICY_PUBLISHER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/wait_log.h"
#include "weights/client/publisher.h"
#include "weights/client/weights.h"
#include "worker/rl/policy/policy.h"

namespace tandem::rl {

// How long a learner waits for a batch, or for other ranks, before it looks whether to stop, and whether
// another one has taken over.
inline constexpr absl::Duration kLearnerSlice = absl::Milliseconds(500);

// Publishes the policy of the learner of rank 0, and waits for a store that is away. The other ranks
// have one that does not begin, and whose other functions do nothing. Not thread-safe.
class PolicyPublisher {
 public:
  // `weights` must outlive it. `must_stop` says whether the learner is to stop, which ends waits early.
  // `waits`, which may be nullptr, logs waits for the store.
  PolicyPublisher(weights::Weights* weights, std::function<bool()> must_stop, WaitLog* waits)
      : weights_(weights), must_stop_(std::move(must_stop)), waits_(waits) {}

  // Begins an epoch and publishes the first parameters. Versions are numbered above `after_version`, and
  // above those of the store. Waits as Publish does, with its errors.
  absl::Status Begin(uint64_t after_version, Policy& policy, const weights::PublishInfo& info);
  bool begun() const { return publisher_ != nullptr; }
  // The last version that Publish has tried to commit. Requires Begin.
  weights::ModelVersion version() const { return publisher_->version(); }

  // Publishes the parameters. Waits for a store that is away, and then for at most two minutes, or until the
  // attempt ends in which the learner is asked to stop. Errors: those of weights::Publisher.
  absl::Status Publish(Policy& policy, const weights::PublishInfo& info);
  // Returns why the weights cannot be published again if their store loses them, which the publisher does by
  // itself. FailedPrecondition: another learner has taken over.
  absl::Status status() const { return begun() ? publisher_->status() : absl::OkStatus(); }

 private:
  weights::Weights* const weights_;
  const std::function<bool()> must_stop_;
  WaitLog* const waits_;
  std::unique_ptr<weights::Publisher> publisher_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ROLES_POLICY_PUBLISHER_H_
