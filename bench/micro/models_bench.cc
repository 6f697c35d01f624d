// SPDX-License-Identifier: Apache-2.0
// Measures one training step of a click model on one core, without lookups: the computation behind which a
// hybrid trainer hides its communication. Also measures the kernels separately, to show where a step spends
// its time. OPENBLAS_CORETYPE selects another BLAS kernel.

#include <cblas.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "benchmark/benchmark.h"
#include "worker/models/interaction.h"
#include "worker/models/model.h"
#include "worker/nn/activation.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/nn/gemm.h"
#include "worker/nn/loss.h"

namespace tandem::worker {
namespace {

constexpr size_t kBatch = 1024;
constexpr int kSparse = 26;
constexpr int kDense = 13;
constexpr int kDim = 16;

AlignedFloats Random(size_t n, uint64_t stream) {
  CounterRandom random(3, stream);
  AlignedFloats values(n);
  for (float& v : values) v = random.Uniform() - 0.5f;
  return values;
}

// Shapes of the Criteo data sets; for DLRM those of its paper's small setting, 13-64-16 and 367-64-1.
struct Step {
  explicit Step(const std::string& kind) {
    UseOneBlasThread();
    ModelOptions options;
    options.kind = kind;
    options.num_dense = kDense;
    options.num_sparse = kSparse;
    options.dim = kDim;
    if (kind == "dlrm") options.hidden = {64};
    model = *CreateModel(options);
    input.batch = kBatch;
    input.dense = dense.data();
    input.embeddings = embeddings.data();
    input.wide = wide.data();
    for (size_t b = 0; b < kBatch; ++b) labels[b] = b % 4 == 0 ? 1.0f : 0.0f;
  }
  void Forward() { model->Forward(input, /*training=*/true, step++, absl::MakeSpan(logits)); }
  void Loss() { loss = BinaryCrossEntropy(logits, labels, 1.0f / kBatch, absl::MakeSpan(d_logits)); }
  void Backward() {
    const InputGradients d_input{d_embeddings.data(), nullptr, d_wide.data()};
    model->Backward(input, d_logits, d_input, [](size_t, size_t) {});
  }

  std::unique_ptr<Model> model;
  AlignedFloats dense = Random(kBatch * kDense, 1);
  AlignedFloats embeddings = Random(kBatch * kSparse * kDim, 2);
  AlignedFloats wide = Random(kBatch * kSparse, 3);
  AlignedFloats labels = AlignedFloats(kBatch);
  AlignedFloats logits = AlignedFloats(kBatch);
  AlignedFloats d_logits = AlignedFloats(kBatch);
  AlignedFloats d_embeddings = AlignedFloats(kBatch * kSparse * kDim);
  AlignedFloats d_wide = AlignedFloats(kBatch * kSparse);
  ModelInput input;
  uint64_t step = 0;
  double loss = 0;
};

void Report(benchmark::State& state) {
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * kBatch));
  state.SetLabel(openblas_get_corename());
}

void TrainStep(benchmark::State& state, const std::string& kind) {
  Step step(kind);
  for (auto _ : state) {
    step.Forward();
    step.Loss();
    step.Backward();
  }
  Report(state);
}
BENCHMARK_CAPTURE(TrainStep, lr, "lr")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(TrainStep, fm, "fm")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(TrainStep, wide_deep, "wide_deep")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(TrainStep, deepfm, "deepfm")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(TrainStep, dcn, "dcn")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(TrainStep, dlrm, "dlrm")->Unit(benchmark::kMillisecond);

void DlrmForward(benchmark::State& state) {
  Step step("dlrm");
  for (auto _ : state) step.Forward();
  Report(state);
}
BENCHMARK(DlrmForward)->Unit(benchmark::kMicrosecond);

void DlrmBackward(benchmark::State& state) {
  Step step("dlrm");
  step.Forward();
  step.Loss();
  for (auto _ : state) step.Backward();
  Report(state);
}
BENCHMARK(DlrmBackward)->Unit(benchmark::kMicrosecond);

void InteractionForward(benchmark::State& state) {
  const Step step("dlrm");
  AlignedFloats x = Random(kBatch * 384, 4);
  Interaction interaction;
  const VectorSet z{{x.data(), 384, kDim}, step.embeddings.data(), kSparse, kDim};
  for (auto _ : state) interaction.Forward(z, kBatch, {x.data() + kDim, 384, 351});
  Report(state);
}
BENCHMARK(InteractionForward)->Unit(benchmark::kMicrosecond);

void InteractionBackward(benchmark::State& state) {
  Step step("dlrm");
  AlignedFloats x = Random(kBatch * 384, 4), dx = Random(kBatch * 384, 5);
  Interaction interaction;
  const VectorSet z{{x.data(), 384, kDim}, step.embeddings.data(), kSparse, kDim};
  VectorSetGradients dz;
  dz.first = {dx.data(), 384, kDim};
  dz.rest = step.d_embeddings.data();
  for (auto _ : state) {
    state.PauseTiming();
    // The backward pass adds to dx, which would overflow in the end.
    for (size_t b = 0; b < kBatch; ++b) dx[b * 384] = 0.0f;
    state.ResumeTiming();
    interaction.Backward(z, kBatch, {dx.data() + kDim, 384, 351}, dz);
  }
  Report(state);
}
BENCHMARK(InteractionBackward)->Unit(benchmark::kMicrosecond);

void TopLayerForward(benchmark::State& state) {
  UseOneBlasThread();
  const AlignedFloats x = Random(kBatch * 384, 1), w = Random(64 * 367, 2);
  AlignedFloats y(kBatch * 64);
  for (auto _ : state) {
    Gemm(Transpose::kNo, Transpose::kYes, kBatch, 64, 367, 1.0f, x.data(), 384, w.data(), 367, 0.0f, y.data(),
         64);
  }
  Report(state);
}
BENCHMARK(TopLayerForward)->Unit(benchmark::kMicrosecond);

void ReluAndBack(benchmark::State& state) {
  AlignedFloats y = Random(kBatch * 64, 1), dy = Random(kBatch * 64, 2), bias = Random(64, 3);
  const Matrix view{y.data(), 64, 64};
  for (auto _ : state) {
    BiasRelu(bias.data(), Dropout(), kBatch, view);
    BiasReluBackward(view, {dy.data(), 64, 64}, 1.0f, kBatch, {dy.data(), 64, 64}, bias.data());
  }
  Report(state);
}
BENCHMARK(ReluAndBack)->Unit(benchmark::kMicrosecond);

void Loss(benchmark::State& state) {
  Step step("lr");
  step.Forward();
  for (auto _ : state) step.Loss();
  Report(state);
}
BENCHMARK(Loss)->Unit(benchmark::kMicrosecond);

void OptimizerStep(benchmark::State& state, const std::string& kind) {
  Step step("dlrm");
  DenseOptimizerOptions options;
  options.kind = kind;
  auto optimizer = *DenseOptimizer::Create(options, step.model->blocks());
  for (auto _ : state) optimizer->Step(1e-6f, step.model->gradients(), step.model->parameters());
}
BENCHMARK_CAPTURE(OptimizerStep, adagrad, "adagrad")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(OptimizerStep, adam, "adam")->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tandem::worker
