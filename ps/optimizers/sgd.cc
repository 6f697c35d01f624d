// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ps/optimizers/sgd.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "ps/optimizers/registry.h"
#include "ps/optimizers/vector_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

void SgdRows(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate, float l2) {
  for (const RowUpdate& row : rows) {
    const float row_rate = learning_rate * row.learning_rate_factor;
    ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR {
      const auto w = hn::LoadU(d, row.weights + i);
      const auto g = LoadGradient(d, row.gradient, i, w, l2);
      hn::StoreU(hn::Sub(w, hn::Mul(hn::Set(d, row_rate), g)), d, row.weights + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::ps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::ps {
namespace {

HWY_EXPORT(SgdRows);

class SgdOptimizer : public Optimizer {
 public:
  explicit SgdOptimizer(const v1::OptimizerConfig& config)
      : learning_rate_(config.learning_rate()), l2_(config.l2()) {}
  absl::string_view kind() const override { return "sgd"; }
  size_t state_floats(size_t dim) const override { return 0; }
  void InitState(const float* weights, float* state, size_t dim) const override {}
  void Update(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate_factor,
              float batch_share) const override {
    HWY_DYNAMIC_DISPATCH(SgdRows)(rows, dim, learning_rate_ * learning_rate_factor, l2_ * batch_share);
  }

 private:
  const float learning_rate_;
  const float l2_;
};

}  // namespace

OptimizerKind SgdKind() {
  return {.name = "sgd",
          .summary = "w -= lr * g",
          .fields = {LearningRate(0.05), WeightDecay(0)},
          .build = [](const v1::OptimizerConfig& config) -> std::unique_ptr<Optimizer> {
            return std::make_unique<SgdOptimizer>(config);
          }};
}

}  // namespace tandem::ps
#endif  // HWY_ONCE
