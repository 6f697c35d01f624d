// SPDX-License-Identifier: Apache-2.0
// A parameter server that uses only remote functions and references, like PyTorch's RPC tutorial in Python.
// The server owns a model. Trainers get a reference to it, pull its weights, compute gradients on their own
// data and push them. Rank 0 is the server, the other ranks train for STEPS steps (200 by default).
//
//   tandem run --nproc-per-node 3 -- ./remote_parameter_server [STEPS]
//
// `tandem status` shows the job while it runs, and `tandem trace` shows how long each function took in each
// process.

#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "cluster/environment.h"
#include "cluster/member.h"
#include "cluster/rendezvous/store_directory.h"
#include "rpc/remote/rpc_agent.h"

namespace {

using tandem::rpc::remote::Function;
using tandem::rpc::remote::Functions;
using tandem::rpc::remote::Future;
using tandem::rpc::remote::RpcAgent;
using tandem::rpc::remote::RRef;
using tandem::rpc::remote::Tensor;

constexpr int kDim = 16, kBatch = 64;
constexpr float kLearningRate = 0.05f;
constexpr absl::Duration kPatience = absl::Minutes(1);

// The model. It exists only at the server; trainers have references to it.
class Model {
 public:
  TANDEM_REMOTE_CLASS(Model)
  explicit Model(int64_t dim) : weights_(static_cast<size_t>(dim)) {}

  Tensor Weights() {
    absl::MutexLock lock(&mutex_);
    return Tensor::Of(weights_);
  }
  absl::Status Apply(const Tensor& gradient) {
    TANDEM_ASSIGN_OR_RETURN(const auto values, gradient.values<float>());
    absl::MutexLock lock(&mutex_);
    if (values.size() != weights_.size()) return absl::InvalidArgumentError("a gradient of another size");
    for (size_t i = 0; i < weights_.size(); ++i) weights_[i] -= kLearningRate * values[i];
    return absl::OkStatus();
  }

 private:
  absl::Mutex mutex_;
  std::vector<float> weights_;
};

constexpr Function<Model(int64_t)> kMakeModel{"make_model"};
constexpr Function<Tensor(RRef<Model>)> kPull{"pull", {.idempotent = true}};
constexpr Function<void(RRef<Model>, Tensor)> kPush{"push"};
constexpr Function<double(RRef<Model>)> kTrain{"train"};

// Returns the mean squared error of a linear model whose true weights are i/dim.
double Gradient(absl::Span<const float> weights, std::mt19937* random, std::vector<float>* gradient) {
  std::normal_distribution<float> normal;
  double loss = 0;
  gradient->assign(weights.size(), 0.0f);
  for (int n = 0; n < kBatch; ++n) {
    std::vector<float> x(weights.size());
    float error = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = normal(*random);
      error += x[i] * (weights[i] - static_cast<float>(i) / static_cast<float>(weights.size()));
    }
    loss += error * error / kBatch;
    for (size_t i = 0; i < x.size(); ++i) (*gradient)[i] += 2 * error * x[i] / kBatch;
  }
  return loss;
}

// Trains at a trainer and returns the loss of the last step.
absl::StatusOr<double> Train(const RRef<Model>& model, int seed, int64_t steps,
                             tandem::rpc::ProcessStatus* status) {
  status->SetState("training");
  std::mt19937 random(static_cast<uint32_t>(seed));
  double loss = 0;
  std::vector<float> gradient;
  Future<void> pushed;
  for (int64_t step = 0; step < steps; ++step) {
    status->SetStep(static_cast<uint64_t>(step));
    TANDEM_ASSIGN_OR_RETURN(const Tensor weights, model.RpcSync(kPull));
    TANDEM_ASSIGN_OR_RETURN(const auto values, weights.values<float>());
    loss = Gradient(values, &random, &gradient);
    if (pushed.valid()) TANDEM_RETURN_IF_ERROR(pushed.Wait());
    // The push overlaps with the next batch.
    pushed = model.RpcAsync({}, kPush, Tensor::Of(gradient));
  }
  TANDEM_RETURN_IF_ERROR(pushed.Wait());
  return loss;
}

Functions Serve(int rank, int64_t steps, tandem::rpc::ProcessStatus* status) {
  Functions functions;
  functions.Add(kMakeModel, [](int64_t dim) { return std::make_unique<Model>(dim); });
  functions.Add(kPull, [](const RRef<Model>& model) -> absl::StatusOr<Tensor> {
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Model> local, model.LocalValue());
    return local->Weights();
  });
  functions.Add(kPush, [](const RRef<Model>& model, const Tensor& gradient) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Model> local, model.LocalValue());
    return local->Apply(gradient);
  });
  functions.Add(kTrain, [=](const RRef<Model>& model) { return Train(model, rank, steps, status); });
  return functions;
}

// Rank 0 also coordinates: it gives the reference to every trainer and waits for all of them.
absl::Status Coordinate(RpcAgent& agent, int trainers) {
  const RRef<Model> model = agent.Remote(agent.name(), kMakeModel, kDim);
  std::vector<Future<double>> losses;
  for (int trainer = 1; trainer <= trainers; ++trainer) {
    losses.push_back(
        agent.RpcAsync({absl::StrCat("worker/", trainer), {.timeout = kPatience}}, kTrain, model));
  }
  for (size_t i = 0; i < losses.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(const double loss, losses[i].Wait());
    std::printf("trainer %zu: loss %.6f\n", i + 1, loss);
    if (!(loss < 1e-3)) return absl::InternalError("the model has not learned");
  }
  std::printf("%d trainers, one model: done\n", trainers);
  return absl::OkStatus();
}

absl::Status Main(int64_t steps) {
  TANDEM_ASSIGN_OR_RETURN(const auto env, tandem::cluster::Environment::FromEnv());
  // Sends heartbeats, and answers `tandem status` and `tandem trace`.
  TANDEM_ASSIGN_OR_RETURN(const auto member, tandem::cluster::Member::Join(env, {.join_timeout = kPatience}));
  TANDEM_ASSIGN_OR_RETURN(const auto directory, tandem::cluster::StoreDirectory::Open(member->store()));
  // Set before a call can set the state "training".
  member->status()->SetState("serving");
  tandem::rpc::remote::RpcAgentOptions options;
  options.name = absl::StrCat("worker/", env.rank);
  for (int rank = 0; rank < env.world_size; ++rank) options.wait_for.push_back(absl::StrCat("worker/", rank));
  TANDEM_ASSIGN_OR_RETURN(
      const std::unique_ptr<RpcAgent> agent,
      RpcAgent::Start(options, directory.get(), Serve(env.rank, steps, member->status().get())));
  member->SetServing(true);
  if (env.rank == 0) TANDEM_RETURN_IF_ERROR(Coordinate(*agent, env.world_size - 1));
  // A trainer only serves calls: it runs until no worker has calls under way.
  TANDEM_RETURN_IF_ERROR(agent->Shutdown(kPatience));
  return member->Leave(kPatience);
}

}  // namespace

int main(int argc, char** argv) {
  int64_t steps = 200;
  if (argc > 2 || (argc == 2 && !absl::SimpleAtoi(argv[1], &steps)) || steps < 1) {
    std::fprintf(stderr, "usage: %s [STEPS]\n", argv[0]);
    return 2;
  }
  const absl::Status status = Main(steps);
  if (!status.ok()) std::fprintf(stderr, "remote_parameter_server: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
