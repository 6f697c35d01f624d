// SPDX-License-Identifier: Apache-2.0
// Data-parallel training: every rank has the whole model and its own part of the data. The ranks average the
// gradients before each step, so all replicas stay equal. The all-reduce of one layer's gradients overlaps
// with the computation of the layer below.
//
//   tandem run --workers 2 -- ./data_parallel

#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "base/status.h"
#include "cluster/environment.h"
#include "collectives/process_group.h"

namespace {

using tandem::collectives::ProcessGroup;
using tandem::collectives::ReduceOp;
using tandem::collectives::Work;

constexpr int kInputs = 8, kHidden = 16, kBatch = 64, kSteps = 300;
constexpr float kLearningRate = 0.1f;

// A layer. Its parameters are one array and its gradients another, so that one all-reduce moves them all:
// weight[o * inputs + i], then the bias of each output.
struct Layer {
  Layer(int inputs, int outputs) : inputs(inputs), values((inputs + 1) * outputs), gradient(values.size()) {
    std::mt19937 random(inputs);  // the same seed on every rank
    std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(inputs)));
    for (float& value : values) value = normal(random);
  }
  float* weight(int output) { return &values[output * inputs]; }
  float& bias(int output) { return values[values.size() - (values.size() / (inputs + 1)) + output]; }
  // Adds the gradient of one example; `delta` is the derivative of the loss by this output.
  void Accumulate(int output, float delta, const float* input) {
    for (int i = 0; i < inputs; ++i) gradient[output * inputs + i] += delta * input[i];
    gradient[gradient.size() - (gradient.size() / (inputs + 1)) + output] += delta;
  }
  void Step() {
    for (size_t i = 0; i < values.size(); ++i) values[i] -= kLearningRate * gradient[i];
  }
  int inputs;
  std::vector<float> values, gradient;
};

absl::Status Train(ProcessGroup& group) {
  Layer below(kInputs, kHidden), above(kHidden, 1);
  std::mt19937 random(1000 + group.rank());  // a different seed on every rank
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  float loss = 0.0f, first_loss = 0.0f;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float> x(kBatch * kInputs), hidden(kBatch * kHidden), delta(kBatch);
    loss = 0.0f;
    for (int n = 0; n < kBatch; ++n) {  // forward
      float target = 0.0f, output = above.bias(0);
      for (int i = 0; i < kInputs; ++i) {
        x[n * kInputs + i] = uniform(random);
        target += (i % 2 == 0 ? 0.5f : -0.5f) * x[n * kInputs + i];
      }
      for (int h = 0; h < kHidden; ++h) {
        float sum = below.bias(h);
        for (int i = 0; i < kInputs; ++i) sum += below.weight(h)[i] * x[n * kInputs + i];
        hidden[n * kHidden + h] = std::tanh(sum);
        output += above.weight(0)[h] * hidden[n * kHidden + h];
      }
      const float error = output - std::sin(target);
      loss += error * error / kBatch;
      delta[n] = 2.0f * error / kBatch;
    }
    above.gradient.assign(above.gradient.size(), 0.0f);
    below.gradient.assign(below.gradient.size(), 0.0f);
    for (int n = 0; n < kBatch; ++n) above.Accumulate(0, delta[n], &hidden[n * kHidden]);
    // The all-reduce of the upper layer's gradients runs ...
    const Work averaged = group.AllReduce(above.gradient, {.op = ReduceOp::kAvg, .async = true});
    // ... while the lower layer's gradients are computed.
    for (int n = 0; n < kBatch; ++n) {
      for (int h = 0; h < kHidden; ++h) {
        const float value = hidden[n * kHidden + h];
        below.Accumulate(h, delta[n] * above.weight(0)[h] * (1.0f - value * value), &x[n * kInputs]);
      }
    }
    TANDEM_RETURN_IF_ERROR(group.AllReduce(below.gradient, {.op = ReduceOp::kAvg}).Wait());
    TANDEM_RETURN_IF_ERROR(averaged.Wait());
    above.Step();
    below.Step();

    std::vector<float> mean = {loss};
    TANDEM_RETURN_IF_ERROR(group.AllReduce(mean, {.op = ReduceOp::kAvg}).Wait());
    loss = mean[0];
    if (step == 0) first_loss = loss;
    if (group.rank() == 0 && step % 50 == 0) std::printf("step %3d  loss %.5f\n", step, loss);
  }

  // All replicas have applied bit-identical gradients, and so they are equal.
  std::vector<float> models(group.world_size() * below.values.size());
  TANDEM_RETURN_IF_ERROR(group.AllGather(below.values, models).Wait());
  for (size_t i = 0; i < models.size(); ++i) {
    if (models[i] != below.values[i % below.values.size()]) return absl::InternalError("replicas differ");
  }
  if (!(loss < 0.1f * first_loss)) return absl::InternalError("the model has not learned");
  if (group.rank() == 0) std::printf("%d ranks, loss %.5f: done\n", group.world_size(), loss);
  return absl::OkStatus();
}

absl::Status Main() {
  // init_method "env://": the variables that `tandem run` sets
  tandem::collectives::ProcessGroupOptions options;
  if (!tandem::cluster::Environment::IsLaunched()) {
    options.init_method = "tcp://127.0.0.1:0";  // without `tandem run`: a group of one
    options.rank = 0;
    options.world_size = 1;
  }
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group, InitProcessGroup(options));
  return Train(*group);
}

}  // namespace

int main() {
  const absl::Status status = Main();
  if (!status.ok()) std::fprintf(stderr, "data_parallel: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
