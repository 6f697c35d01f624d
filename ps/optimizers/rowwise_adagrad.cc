// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ps/optimizers/rowwise_adagrad.cc"
#include <algorithm>
#include <cmath>

#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "ps/optimizers/registry.h"
#include "ps/optimizers/vector_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

void RowwiseAdagradRows(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate, float epsilon,
                        float l2) {
  for (const RowUpdate& row : rows) {
    const float* const gradient = row.gradient;
    const float* const weights = row.weights;
    const double sum =
        l2 == 0.0f ? SumOfSquares(dim, [=](size_t i) HWY_ATTR { return gradient[i]; })
                   : SumOfSquares(dim, [=](size_t i) HWY_ATTR { return gradient[i] + l2 * weights[i]; });
    const float accumulator = row.state[0] + static_cast<float>(sum / static_cast<double>(dim));
    row.state[0] = accumulator;
    const float rate = learning_rate * row.learning_rate_factor / (std::sqrt(accumulator) + epsilon);
    ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR {
      const auto w = hn::LoadU(d, row.weights + i);
      const auto g = LoadGradient(d, row.gradient, i, w, l2);
      hn::StoreU(hn::Sub(w, hn::Mul(hn::Set(d, rate), g)), d, row.weights + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::ps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::ps {
namespace {

HWY_EXPORT(RowwiseAdagradRows);

// a += mean(g^2); w -= lr * g / (sqrt(a) + epsilon). State: a[1].
class RowwiseAdagradOptimizer : public Optimizer {
 public:
  explicit RowwiseAdagradOptimizer(const v1::OptimizerConfig& config)
      : learning_rate_(config.learning_rate()),
        initial_accumulator_(config.initial_accumulator()),
        epsilon_(config.epsilon()),
        l2_(config.l2()) {}
  absl::string_view kind() const override { return "rowwise_adagrad"; }
  size_t state_floats(size_t dim) const override { return 1; }
  void InitState(const float* weights, float* state, size_t dim) const override {
    state[0] = initial_accumulator_;
  }
  void Update(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate_factor,
              float batch_share) const override {
    HWY_DYNAMIC_DISPATCH(RowwiseAdagradRows)
    (rows, dim, learning_rate_ * learning_rate_factor, epsilon_, l2_ * batch_share);
  }

 private:
  const float learning_rate_;
  const float initial_accumulator_;
  const float epsilon_;
  const float l2_;
};

}  // namespace

OptimizerKind RowwiseAdagradKind() {
  return {
      .name = "rowwise_adagrad",
      .summary = "one accumulator a row, 4 bytes of state: a += mean(g^2); w -= lr * g / (sqrt(a) + epsilon)",
      .reference = "TorchRec's row-wise Adagrad",
      .fields = {LearningRate(0.01), Epsilon(1e-10), InitialAccumulator(0, AtLeast(0)), WeightDecay(0)},
      .build = [](const v1::OptimizerConfig& config) -> std::unique_ptr<Optimizer> {
        return std::make_unique<RowwiseAdagradOptimizer>(config);
      }};
}

}  // namespace tandem::ps
#endif  // HWY_ONCE
