// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ps/optimizers/amsgrad.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "ps/optimizers/registry.h"
#include "ps/optimizers/vector_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

void AmsGradRows(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate, float beta1, float beta2,
                 float epsilon, float l2) {
  for (const RowUpdate& row : rows) {
    const float row_rate = learning_rate * row.learning_rate_factor;
    float* const first = row.state;
    float* const second = row.state + dim;
    float* const largest = row.state + 2 * dim;
    ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR {
      const auto w = hn::LoadU(d, row.weights + i);
      const auto g = LoadGradient(d, row.gradient, i, w, l2);
      const auto m =
          hn::Add(hn::Mul(hn::Set(d, beta1), hn::LoadU(d, first + i)), hn::Mul(hn::Set(d, 1.0f - beta1), g));
      const auto v = hn::Add(hn::Mul(hn::Set(d, beta2), hn::LoadU(d, second + i)),
                             hn::Mul(hn::Set(d, 1.0f - beta2), hn::Mul(g, g)));
      const auto most = hn::Max(hn::LoadU(d, largest + i), v);
      hn::StoreU(m, d, first + i);
      hn::StoreU(v, d, second + i);
      hn::StoreU(most, d, largest + i);
      const auto step =
          hn::Div(hn::Mul(hn::Set(d, row_rate), m), hn::Add(hn::Sqrt(most), hn::Set(d, epsilon)));
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

HWY_EXPORT(AmsGradRows);

// m and v: running averages of g and g^2; u = the largest v so far; w -= lr * m / (sqrt(u) + epsilon) (Reddi,
// Kale and Kumar, ICLR 2018, Algorithm 2, whose epsilon is 0; no bias correction). State: m[dim], v[dim],
// u[dim].
class AmsGradOptimizer : public Optimizer {
 public:
  explicit AmsGradOptimizer(const v1::OptimizerConfig& config)
      : learning_rate_(config.learning_rate()),
        beta1_(config.beta1()),
        beta2_(config.beta2()),
        epsilon_(config.epsilon()),
        l2_(config.l2()) {}
  absl::string_view kind() const override { return "amsgrad"; }
  size_t state_floats(size_t dim) const override { return 3 * dim; }
  void InitState(const float* weights, float* state, size_t dim) const override {
    std::fill_n(state, 3 * dim, 0.0f);
  }
  void Update(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate_factor,
              float batch_share) const override {
    HWY_DYNAMIC_DISPATCH(AmsGradRows)
    (rows, dim, learning_rate_ * learning_rate_factor, beta1_, beta2_, epsilon_, l2_ * batch_share);
  }

 private:
  const float learning_rate_;
  const float beta1_;
  const float beta2_;
  const float epsilon_;
  const float l2_;
};

}  // namespace

OptimizerKind AmsGradKind() {
  return {.name = "amsgrad",
          .summary = "Adam whose average of squared gradients never falls; without bias correction",
          .reference = "Reddi, Kale and Kumar, ICLR 2018, Algorithm 2",
          .fields = {LearningRate(0.001), Beta1(0.9), Beta2(0.999), Epsilon(1e-8), WeightDecay(0)},
          .build = [](const v1::OptimizerConfig& config) -> std::unique_ptr<Optimizer> {
            return std::make_unique<AmsGradOptimizer>(config);
          }};
}

}  // namespace tandem::ps
#endif  // HWY_ONCE
