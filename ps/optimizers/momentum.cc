// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ps/optimizers/momentum.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "ps/optimizers/registry.h"
#include "ps/optimizers/vector_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

void MomentumRows(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate, float momentum,
                  float l2) {
  for (const RowUpdate& row : rows) {
    const float row_rate = learning_rate * row.learning_rate_factor;
    ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR {
      const auto w = hn::LoadU(d, row.weights + i);
      const auto g = LoadGradient(d, row.gradient, i, w, l2);
      const auto velocity = hn::Add(hn::Mul(hn::Set(d, momentum), hn::LoadU(d, row.state + i)), g);
      hn::StoreU(velocity, d, row.state + i);
      hn::StoreU(hn::Sub(w, hn::Mul(hn::Set(d, row_rate), velocity)), d, row.weights + i);
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

HWY_EXPORT(MomentumRows);

// Polyak's heavy ball: v = momentum * v + g; w -= lr * v. State: v[dim].
class MomentumOptimizer : public Optimizer {
 public:
  explicit MomentumOptimizer(const v1::OptimizerConfig& config)
      : learning_rate_(config.learning_rate()), momentum_(config.momentum()), l2_(config.l2()) {}
  absl::string_view kind() const override { return "momentum"; }
  size_t state_floats(size_t dim) const override { return dim; }
  void InitState(const float* weights, float* state, size_t dim) const override {
    std::fill_n(state, dim, 0.0f);
  }
  void Update(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate_factor,
              float batch_share) const override {
    HWY_DYNAMIC_DISPATCH(MomentumRows)
    (rows, dim, learning_rate_ * learning_rate_factor, momentum_, l2_ * batch_share);
  }

 private:
  const float learning_rate_;
  const float momentum_;
  const float l2_;
};

}  // namespace

OptimizerKind MomentumKind() {
  return {.name = "momentum",
          .summary = "v = momentum * v + g; w -= lr * v",
          .reference = "Polyak's heavy ball, USSR CMMP 1964",
          .fields = {LearningRate(0.01),
                     MessageField<&v1::OptimizerConfig::momentum, &v1::OptimizerConfig::set_momentum>(
                         {.name = "momentum",
                          .help = "share of the velocity that is left after an update",
                          .range = Fraction(),
                          .default_value = 0.9,
                          .usual = true}),
                     WeightDecay(0)},
          .build = [](const v1::OptimizerConfig& config) -> std::unique_ptr<Optimizer> {
            return std::make_unique<MomentumOptimizer>(config);
          }};
}

}  // namespace tandem::ps
#endif  // HWY_ONCE
