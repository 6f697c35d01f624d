// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ps/optimizers/adagrad.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "ps/optimizers/registry.h"
#include "ps/optimizers/vector_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

void AdagradRows(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate, float epsilon, float l2) {
  for (const RowUpdate& row : rows) {
    const float row_rate = learning_rate * row.learning_rate_factor;
    ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR {
      const auto w = hn::LoadU(d, row.weights + i);
      const auto g = LoadGradient(d, row.gradient, i, w, l2);
      const auto a = hn::Add(hn::LoadU(d, row.state + i), hn::Mul(g, g));
      hn::StoreU(a, d, row.state + i);
      const auto step = hn::Div(hn::Mul(hn::Set(d, row_rate), g), hn::Add(hn::Sqrt(a), hn::Set(d, epsilon)));
      hn::StoreU(hn::Sub(w, step), d, row.weights + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::ps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

namespace tandem::ps {
namespace {

HWY_EXPORT(AdagradRows);

// a += g^2; w -= lr * g / (sqrt(a) + epsilon). State: a[dim].
class AdagradOptimizer : public Optimizer {
 public:
  explicit AdagradOptimizer(const v1::OptimizerConfig& config)
      : learning_rate_(config.learning_rate()),
        initial_accumulator_(config.initial_accumulator()),
        epsilon_(config.epsilon()),
        l2_(config.l2()) {}
  absl::string_view kind() const override { return "adagrad"; }
  size_t state_floats(size_t dim) const override { return dim; }
  void InitState(const float* weights, float* state, size_t dim) const override {
    std::fill_n(state, dim, initial_accumulator_);
  }
  void Update(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate_factor,
              float batch_share) const override {
    HWY_DYNAMIC_DISPATCH(AdagradRows)
    (rows, dim, learning_rate_ * learning_rate_factor, epsilon_, l2_ * batch_share);
  }

 private:
  const float learning_rate_;
  const float initial_accumulator_;
  const float epsilon_;
  const float l2_;
};

}  // namespace

OptimizerKind AdagradKind() {
  return {.name = "adagrad",
          .summary = "a += g^2; w -= lr * g / (sqrt(a) + epsilon)",
          .reference = "Duchi, Hazan and Singer, JMLR 2011",
          .fields = {LearningRate(0.01), Epsilon(1e-10), InitialAccumulator(0, AtLeast(0)), WeightDecay(0)},
          .build = [](const v1::OptimizerConfig& config) -> std::unique_ptr<Optimizer> {
            return std::make_unique<AdagradOptimizer>(config);
          }};
}

}  // namespace tandem::ps
#endif  // HWY_ONCE
