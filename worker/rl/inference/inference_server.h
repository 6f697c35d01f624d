// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_INFERENCE_INFERENCE_SERVER_H_
#define TANDEM_WORKER_RL_INFERENCE_INFERENCE_SERVER_H_

// The service tandem.v1.Inference (proto/tandem/v1/inference.proto): one policy that acts for many actors.

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "rpc/service.h"
#include "tandem/v1/inference.pb.h"
#include "weights/client/weights.h"
#include "worker/rl/envs/environment.h"
#include "worker/rl/policy/actor_critic.h"

namespace tandem::rl {

struct InferenceServerOptions {
  std::string name = "inference/0";  // in errors
  PolicyOptions policy;
  uint64_t seed = 1;           // of the actions
  size_t max_rows = 65536;     // of one call
  size_t max_waiting = 16384;  // calls; further ones are refused
};

// Batches the calls of all actors, without a timer: a batch starts at once when none is running, and takes
// all calls that have arrived while the one before was computed. A caller that is gone holds nothing up.
// Follows the newest weights; each answer says which ones have acted. A version that does not fit the policy,
// or has values that are not finite, is skipped, and a warning says so: the version before acts on. Without
// one, calls fail until there is another version. Thread-safe.
class InferenceServer {
 public:
  // `weights` must outlive the server. Starts two threads.
  InferenceServer(const InferenceServerOptions& options, const EnvironmentSpec& environment,
                  weights::Weights* weights);
  ~InferenceServer() { Stop(); }

  // Returns the service, whose handlers must not be called after this object is destroyed.
  rpc::Service service();
  v1::InferenceStatistics Statistics() const;
  // Ends all calls with Cancelled and joins the threads. Idempotent.
  void Stop();

 private:
  struct Call {
    std::shared_ptr<rpc::ServerCall> call;
    size_t rows = 0;
    std::vector<float> observations;
    absl::Time arrived;
  };

  void Act(const std::shared_ptr<rpc::ServerCall>& call);
  void Compute();  // the thread of the policy
  void Follow();   // the thread that waits for weights
  void Run(std::vector<Call> calls);
  // Remembers that `model` cannot act, and says so.
  void Skip(std::shared_ptr<const weights::Model> model, const absl::Status& why);
  void Respond(const Call& call, size_t begin);
  // Removes the calls whose callers have gone or whose deadlines have passed, and returns them.
  static std::vector<Call> TakeGone(std::vector<Call>* calls);
  static void FinishAll(const std::vector<Call>& calls, const absl::Status& status);
  bool Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopped_ || (!waiting_.empty() && newest_ != nullptr);
  }

  const InferenceServerOptions options_;
  weights::Weights* const weights_;
  // Used by Compute only.
  ActorCritic policy_;
  const size_t observation_size_, action_size_;
  CounterRandom random_;
  std::shared_ptr<const weights::Model> model_;    // the one that acts; nullptr: none yet
  std::shared_ptr<const weights::Model> skipped_;  // the last one that cannot
  absl::Status skip_reason_;
  absl::Time said_ = absl::InfinitePast();
  std::vector<float> observations_, actions_, log_probabilities_, values_;

  mutable absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  // Why no version has acted yet; calls get it. OK: the newest version has not been tried.
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const weights::Model> newest_ ABSL_GUARDED_BY(mutex_);
  std::vector<Call> waiting_ ABSL_GUARDED_BY(mutex_);
  v1::InferenceStatistics sums_ ABSL_GUARDED_BY(mutex_);  // sums in place of means
  std::thread computing_, following_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_INFERENCE_INFERENCE_SERVER_H_
