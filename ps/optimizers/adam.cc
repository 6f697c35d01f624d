// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ps/optimizers/adam.cc"
#include <cmath>
#include <vector>

#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "ps/optimizers/registry.h"
#include "ps/optimizers/vector_loop-inl.h"

#ifndef TANDEM_PS_OPTIMIZERS_ADAM_ONCE_
#define TANDEM_PS_OPTIMIZERS_ADAM_ONCE_
namespace tandem::ps {

// Computes Adam's bias correction, sqrt(1 - beta2^t) / (1 - beta1^t), which makes up for averages that start
// at zero. Values are kept in a table, because two powers would cost more than the update of a row.
class BiasCorrection {
 public:
  BiasCorrection(float beta1, float beta2) : beta1_(beta1), beta2_(beta2) {
    constexpr size_t kMaxEntries = 1 << 16;
    table_.push_back(1.0f);  // t = 0 does not occur
    while (table_.size() < kMaxEntries && !settled_) {
      const double t = static_cast<double>(table_.size());
      table_.push_back(Compute(t));
      // Once both powers are below half a unit in the last place of 1, the factor is 1 for ever.
      settled_ = std::pow(beta1_, t) < 0x1p-26 && std::pow(beta2_, t) < 0x1p-26;
    }
  }
  float At(float t) const {
    const auto index = static_cast<size_t>(t);
    if (index < table_.size()) return table_[index];
    return settled_ ? 1.0f : Compute(t);
  }

 private:
  float Compute(double t) const {
    return static_cast<float>(std::sqrt(1.0 - std::pow(beta2_, t)) / (1.0 - std::pow(beta1_, t)));
  }
  const double beta1_;
  const double beta2_;
  bool settled_ = false;
  std::vector<float> table_;
};

}  // namespace tandem::ps
#endif  // TANDEM_PS_OPTIMIZERS_ADAM_ONCE_

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

void AdamRows(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate, float beta1, float beta2,
              float epsilon, float l2, const BiasCorrection& correction) {
  for (const RowUpdate& row : rows) {
    float* const first = row.state;
    float* const second = row.state + dim;
    const float t = row.state[2 * dim] + 1.0f;
    row.state[2 * dim] = t;
    const float rate = learning_rate * row.learning_rate_factor * correction.At(t);
    ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR {
      const auto w = hn::LoadU(d, row.weights + i);
      const auto g = LoadGradient(d, row.gradient, i, w, l2);
      const auto m =
          hn::Add(hn::Mul(hn::Set(d, beta1), hn::LoadU(d, first + i)), hn::Mul(hn::Set(d, 1.0f - beta1), g));
      const auto v = hn::Add(hn::Mul(hn::Set(d, beta2), hn::LoadU(d, second + i)),
                             hn::Mul(hn::Set(d, 1.0f - beta2), hn::Mul(g, g)));
      hn::StoreU(m, d, first + i);
      hn::StoreU(v, d, second + i);
      const auto step = hn::Div(hn::Mul(hn::Set(d, rate), m), hn::Add(hn::Sqrt(v), hn::Set(d, epsilon)));
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

HWY_EXPORT(AdamRows);

// m and v are running averages of g and g^2. w -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) +
// epsilon): PyTorch's SparseAdam, except that t counts the row's own updates. State: m[dim], v[dim], t. t is
// a float: it is exact up to 2^24 updates of one row and does not grow further. By then the bias correction
// has long been 1 for any beta up to 1 - 1e-6.
class AdamOptimizer : public Optimizer {
 public:
  explicit AdamOptimizer(const v1::OptimizerConfig& config)
      : learning_rate_(config.learning_rate()),
        beta1_(config.beta1()),
        beta2_(config.beta2()),
        epsilon_(config.epsilon()),
        l2_(config.l2()),
        correction_(config.beta1(), config.beta2()),
        decoupled_(config.kind() == "adamw") {}
  absl::string_view kind() const override { return decoupled_ ? "adamw" : "adam"; }
  size_t state_floats(size_t dim) const override { return 2 * dim + 1; }
  void InitState(const float* weights, float* state, size_t dim) const override {
    std::fill_n(state, 2 * dim + 1, 0.0f);
  }
  void Update(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate_factor,
              float batch_share) const override {
    HWY_DYNAMIC_DISPATCH(AdamRows)
    (rows, dim, learning_rate_ * learning_rate_factor, beta1_, beta2_, epsilon_, l2_ * batch_share,
     correction_);
  }

 private:
  const float learning_rate_;
  const float beta1_;
  const float beta2_;
  const float epsilon_;
  const float l2_;
  const BiasCorrection correction_;
  const bool decoupled_;
};

}  // namespace

OptimizerKind AdamKind() {
  return {
      .name = "adam",
      .summary =
          "averages of g and of g^2 with bias correction; t counts the row's own updates, so rows that "
          "are not updated do not move (PyTorch's SparseAdam takes the optimizer's steps as t of every row)",
      .reference = "Kingma and Ba, ICLR 2015",
      .fields = {LearningRate(0.001), Beta1(0.9), Beta2(0.999), Epsilon(1e-8), WeightDecay(0)},
      .build = [](const v1::OptimizerConfig& config) -> std::unique_ptr<Optimizer> {
        return std::make_unique<AdamOptimizer>(config);
      }};
}

OptimizerKind AdamWKind() {
  OptimizerKind kind = AdamKind();
  kind.name = "adamw";
  kind.summary = "Adam with decoupled weight decay";
  kind.reference = "Loshchilov and Hutter, ICLR 2019";
  kind.fields.back() = WeightDecay(0.01);  // a modifier does the decay
  return kind;
}

}  // namespace tandem::ps
#endif  // HWY_ONCE
