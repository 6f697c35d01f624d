// SPDX-License-Identifier: Apache-2.0
// A pipeline-parallel MLP with a distributed optimizer, after torch.distributed.rpc's pipeline tutorial and
// its DistributedOptimizer. Each layer is in another worker, and rank 0 has references to all of them.
// Several micro-batches pass through the layers, forward and back, at the same time, so that all workers are
// busy. Then rank 0 calls step() at every owner.
//
//   tandem run --nproc-per-node 3 -- ./remote_pipeline [STEPS]
//
// `tandem status` shows the job while it runs, and `tandem trace` shows how long each function took in each
// process.

#include <cmath>
#include <cstdio>
#include <map>
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

using tandem::DType;
using tandem::rpc::remote::Function;
using tandem::rpc::remote::Functions;
using tandem::rpc::remote::Future;
using tandem::rpc::remote::RpcAgent;
using tandem::rpc::remote::RRef;
using tandem::rpc::remote::Tensor;

constexpr int64_t kInputs = 4, kHidden = 32, kRows = 32;
constexpr int kMicroBatches = 4;
constexpr float kLearningRate = 0.05f;
constexpr absl::Duration kPatience = absl::Minutes(1);

struct LayerSize {
  int64_t inputs = 0, outputs = 0;
  bool tanh = false;
  TANDEM_REMOTE_FIELDS(LayerSize, inputs, outputs, tanh)
};

// A layer: y = f(x W + b). Accumulates the gradients of several micro-batches until Step().
class Layer {
 public:
  TANDEM_REMOTE_CLASS(Layer)
  explicit Layer(LayerSize size)
      : size_(size),
        weights_(static_cast<size_t>((size.inputs + 1) * size.outputs)),
        gradient_(weights_.size()) {
    std::mt19937 random(static_cast<uint32_t>(size.inputs * 1000 + size.outputs));
    std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(size.inputs)));
    for (float& weight : weights_) weight = normal(random);
  }

  absl::StatusOr<Tensor> Forward(int64_t micro_batch, const Tensor& x) {
    TANDEM_ASSIGN_OR_RETURN(const auto in, x.values<float>());
    const int64_t rows = static_cast<int64_t>(in.size()) / size_.inputs;
    Tensor y = Tensor::Allocate(DType::kF32, {rows, size_.outputs});
    TANDEM_ASSIGN_OR_RETURN(const auto out, y.mutable_values<float>());
    absl::MutexLock lock(&mutex_);
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t o = 0; o < size_.outputs; ++o) {
        float sum = weights_[size_.inputs * size_.outputs + o];
        for (int64_t i = 0; i < size_.inputs; ++i)
          sum += in[n * size_.inputs + i] * weights_[i * size_.outputs + o];
        out[n * size_.outputs + o] = size_.tanh ? std::tanh(sum) : sum;
      }
    }
    kept_[micro_batch] = {x, y};
    return y;
  }

  // Returns the derivative of the loss by the layer's input, given that by its output.
  absl::StatusOr<Tensor> Backward(int64_t micro_batch, const Tensor& dy) {
    TANDEM_ASSIGN_OR_RETURN(const auto by_out, dy.values<float>());
    absl::MutexLock lock(&mutex_);
    const auto kept = kept_.find(micro_batch);
    if (kept == kept_.end()) return absl::FailedPreconditionError("backward before forward");
    TANDEM_ASSIGN_OR_RETURN(const auto in, kept->second.first.values<float>());
    TANDEM_ASSIGN_OR_RETURN(const auto out, kept->second.second.values<float>());
    if (by_out.size() != out.size()) return absl::InvalidArgumentError("a gradient of another size");
    const int64_t rows = static_cast<int64_t>(in.size()) / size_.inputs;
    Tensor dx = Tensor::Allocate(DType::kF32, {rows, size_.inputs});
    TANDEM_ASSIGN_OR_RETURN(const auto by_in, dx.mutable_values<float>());
    std::fill(by_in.begin(), by_in.end(), 0.0f);
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t o = 0; o < size_.outputs; ++o) {
        const float y = out[n * size_.outputs + o];
        const float delta = by_out[n * size_.outputs + o] * (size_.tanh ? 1.0f - y * y : 1.0f);
        gradient_[size_.inputs * size_.outputs + o] += delta;
        for (int64_t i = 0; i < size_.inputs; ++i) {
          gradient_[i * size_.outputs + o] += delta * in[n * size_.inputs + i];
          by_in[n * size_.inputs + i] += delta * weights_[i * size_.outputs + o];
        }
      }
    }
    kept_.erase(kept);
    return dx;
  }

  void Step(float learning_rate) {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < weights_.size(); ++i) weights_[i] -= learning_rate * gradient_[i];
    gradient_.assign(gradient_.size(), 0.0f);
  }

 private:
  const LayerSize size_;
  absl::Mutex mutex_;
  std::vector<float> weights_, gradient_;
  std::map<int64_t, std::pair<Tensor, Tensor>> kept_;  // input and output, by micro-batch
};

constexpr Function<Layer(LayerSize)> kMakeLayer{"make_layer"};
constexpr Function<Tensor(RRef<Layer>, int64_t, Tensor)> kForward{"forward"};
constexpr Function<Tensor(RRef<Layer>, int64_t, Tensor)> kBackward{"backward"};
constexpr Function<void(RRef<Layer>, float)> kStep{"step"};

Functions Serve() {
  Functions functions;
  functions.Add(kMakeLayer, [](const LayerSize& size) { return std::make_unique<Layer>(size); });
  functions.Add(kForward,
                [](const RRef<Layer>& layer, int64_t micro_batch, const Tensor& x) -> absl::StatusOr<Tensor> {
                  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Layer> local, layer.LocalValue());
                  return local->Forward(micro_batch, x);
                });
  functions.Add(
      kBackward,
      [](const RRef<Layer>& layer, int64_t micro_batch, const Tensor& dy) -> absl::StatusOr<Tensor> {
        TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Layer> local, layer.LocalValue());
        return local->Backward(micro_batch, dy);
      });
  functions.Add(kStep, [](const RRef<Layer>& layer, float learning_rate) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Layer> local, layer.LocalValue());
    local->Step(learning_rate);
    return absl::OkStatus();
  });
  return functions;
}

// Calls step() at every owner of a set of references, all at the same time.
class DistributedOptimizer {
 public:
  DistributedOptimizer(std::vector<RRef<Layer>> layers, float learning_rate)
      : layers_(std::move(layers)), learning_rate_(learning_rate) {}
  absl::Status Step() const {
    std::vector<Future<void>> steps;
    for (const RRef<Layer>& layer : layers_) steps.push_back(layer.RpcAsync({}, kStep, learning_rate_));
    return tandem::rpc::remote::WaitAll(steps);
  }

 private:
  const std::vector<RRef<Layer>> layers_;
  const float learning_rate_;
};

absl::Status Coordinate(RpcAgent& agent, int owners, int64_t steps, tandem::rpc::ProcessStatus* status) {
  // Two hidden layers and an output layer, distributed over the other workers.
  const std::vector<LayerSize> sizes = {
      {kInputs, kHidden, true}, {kHidden, kHidden, true}, {kHidden, 1, false}};
  std::vector<RRef<Layer>> layers;
  for (size_t i = 0; i < sizes.size(); ++i) {
    layers.push_back(agent.Remote(absl::StrCat("worker/", 1 + i % owners), kMakeLayer, sizes[i]));
  }
  const DistributedOptimizer optimizer(layers, kLearningRate);

  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  float loss = 0, first_loss = 0;
  status->SetState("training");
  for (int64_t step = 0; step < steps; ++step) {
    status->SetStep(static_cast<uint64_t>(step));
    // Forward: a layer gets a micro-batch as soon as the layer before it has finished it.
    std::vector<std::vector<float>> targets(kMicroBatches);
    std::vector<Tensor> values;
    for (int m = 0; m < kMicroBatches; ++m) {
      std::vector<float> x(kRows * kInputs);
      for (int64_t n = 0; n < kRows; ++n) {
        float sum = 0;
        for (int64_t i = 0; i < kInputs; ++i) sum += x[n * kInputs + i] = uniform(random);
        targets[m].push_back(std::sin(sum));
      }
      values.push_back(Tensor::Copy(x, {kRows, kInputs}));
    }
    // The diagonals d run one after the other: layer l works on micro-batch d - l while the others work on
    // theirs.
    const int depth = static_cast<int>(layers.size());
    for (const bool forward : {true, false}) {
      for (int diagonal = 0; diagonal < kMicroBatches + depth - 1; ++diagonal) {
        std::vector<std::pair<int, Future<Tensor>>> under_way;
        for (int stage = 0; stage < depth; ++stage) {
          const int m = diagonal - stage;
          if (m < 0 || m >= kMicroBatches) continue;
          const RRef<Layer>& layer = layers[forward ? stage : depth - 1 - stage];
          under_way.emplace_back(m, layer.RpcAsync({}, forward ? kForward : kBackward, m, values[m]));
        }
        for (auto& [m, future] : under_way) {
          TANDEM_ASSIGN_OR_RETURN(values[m], future.Wait());
        }
      }
      if (!forward) continue;
      loss = 0;
      // The loss, and its derivative by the output.
      for (int m = 0; m < kMicroBatches; ++m) {
        TANDEM_ASSIGN_OR_RETURN(const auto y, values[m].mutable_values<float>());
        for (int64_t n = 0; n < kRows; ++n) {
          const float error = y[n] - targets[m][n];
          loss += error * error / (kMicroBatches * kRows);
          y[n] = 2 * error / (kMicroBatches * kRows);
        }
      }
    }
    TANDEM_RETURN_IF_ERROR(optimizer.Step());
    if (step == 0) first_loss = loss;
    if (step % 100 == 0) std::printf("step %3d  loss %.5f\n", static_cast<int>(step), loss);
  }
  if (!(loss < 0.2f * first_loss))
    return absl::InternalError(absl::StrCat("the model has not learned: ", loss));
  std::printf("3 layers at %d owners, loss %.5f: done\n", owners, loss);
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
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<RpcAgent> agent,
                          RpcAgent::Start(options, directory.get(), Serve()));
  member->SetServing(true);
  if (env.rank == 0) {
    TANDEM_RETURN_IF_ERROR(Coordinate(*agent, env.world_size - 1, steps, member->status().get()));
  }
  TANDEM_RETURN_IF_ERROR(agent->Shutdown(kPatience));
  return member->Leave(kPatience);
}

}  // namespace

int main(int argc, char** argv) {
  int64_t steps = 300;
  if (argc > 2 || (argc == 2 && !absl::SimpleAtoi(argv[1], &steps)) || steps < 1) {
    std::fprintf(stderr, "usage: %s [STEPS]\n", argv[0]);
    return 2;
  }
  const absl::Status status = Main(steps);
  if (!status.ok()) std::fprintf(stderr, "remote_pipeline: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
