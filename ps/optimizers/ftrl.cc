// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ps/optimizers/ftrl.cc"
#include <cmath>

#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "ps/optimizers/registry.h"
#include "ps/optimizers/vector_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

void FtrlRows(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate, float l1, float l2) {
  for (const RowUpdate& row : rows) {
    const float row_rate = learning_rate * row.learning_rate_factor;
    float* const z_row = row.state;
    float* const n_row = row.state + dim;
    ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR {
      const auto w = hn::LoadU(d, row.weights + i);
      const auto g = hn::LoadU(d, row.gradient + i);
      const auto n0 = hn::LoadU(d, n_row + i);
      const auto n = hn::Add(n0, hn::Mul(g, g));
      const auto root = hn::Sqrt(n);
      const auto rate = hn::Set(d, row_rate);
      const auto sigma = hn::Div(hn::Sub(root, hn::Sqrt(n0)), rate);
      const auto z = hn::Add(hn::LoadU(d, z_row + i), hn::Sub(g, hn::Mul(sigma, w)));
      hn::StoreU(n, d, n_row + i);
      hn::StoreU(z, d, z_row + i);
      const auto threshold = hn::Set(d, l1);
      const auto shrunk = hn::CopySign(hn::Sub(hn::Abs(z), threshold), z);  // z - sign(z) * l1
      const auto moved = hn::Neg(hn::Div(shrunk, hn::Add(hn::Div(root, rate), hn::Set(d, l2))));
      hn::StoreU(hn::IfThenElseZero(hn::Gt(hn::Abs(z), threshold), moved), d, row.weights + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::ps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::ps {
namespace {

HWY_EXPORT(FtrlRows);

// Per-coordinate FTRL-Proximal (McMahan et al., KDD 2013, Algorithm 1) with alpha = learning_rate, beta = 0
// (the initial accumulator n0 does its work) and n^-power in place of sqrt(n). State: z[dim], n[dim]. The
// paper starts from w = z = 0. Here z starts where it reproduces the row's initial weights, so that an
// initializer means the same as with other optimizers and the first update does not throw it away.
class FtrlOptimizer : public Optimizer {
 public:
  explicit FtrlOptimizer(const v1::OptimizerConfig& config)
      : learning_rate_(config.learning_rate()),
        initial_accumulator_(config.initial_accumulator()),
        l1_(config.l1()),
        l2_(config.l2()),
        power_(config.learning_rate_power()) {}
  absl::string_view kind() const override { return "ftrl"; }
  size_t state_floats(size_t dim) const override { return 2 * dim; }
  void InitState(const float* weights, float* state, size_t dim) const override {
    const float curvature = std::pow(initial_accumulator_, -power_) / learning_rate_ + l2_;
    for (size_t i = 0; i < dim; ++i) {
      state[i] = weights[i] == 0.0f ? 0.0f : -(weights[i] * curvature + std::copysign(l1_, weights[i]));
      state[dim + i] = initial_accumulator_;
    }
  }
  // `batch_share` has no effect: the l2 of FTRL belongs to the whole objective, and is not added in each
  // update.
  void Update(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate_factor,
              float /*batch_share*/) const override {
    const float learning_rate = learning_rate_ * learning_rate_factor;
    if (learning_rate == 0.0f) return;  // divides by it; weights do not move, nor what they are computed from
    if (power_ == -0.5f) {
      HWY_DYNAMIC_DISPATCH(FtrlRows)(rows, dim, learning_rate, l1_, l2_);
      return;
    }
    for (const RowUpdate& row : rows) UpdateWithPower(row, dim, learning_rate * row.learning_rate_factor);
  }

 private:
  void UpdateWithPower(const RowUpdate& row, size_t dim, float learning_rate) const {
    for (size_t i = 0; i < dim; ++i) {
      float& w = row.weights[i];
      float& z = row.state[i];
      float& n = row.state[dim + i];
      const float g = row.gradient[i];
      const float before = std::pow(n, -power_);
      n += g * g;
      const float after = std::pow(n, -power_);
      z += g - (after - before) / learning_rate * w;
      w = std::abs(z) > l1_ ? -std::copysign(std::abs(z) - l1_, z) / (after / learning_rate + l2_) : 0.0f;
    }
  }

  const float learning_rate_;
  const float initial_accumulator_;
  const float l1_;
  const float l2_;
  const float power_;
};

}  // namespace

OptimizerKind FtrlKind() {
  using Config = v1::OptimizerConfig;
  return {
      .name = "ftrl",
      .summary = "FTRL-Proximal; l1 makes weights exactly zero",
      .reference = "McMahan et al., KDD 2013",
      // An initial accumulator of 0 and a gradient too small to square would divide by zero.
      .fields = {LearningRate(0.05), InitialAccumulator(0.1, Above(0)),
                 MessageField<&Config::l1, &Config::set_l1>(
                     {.name = "l1", .help = "L1 regularization", .range = AtLeast(0), .default_value = 0}),
                 MessageField<&Config::l2, &Config::set_l2>(
                     {.name = "l2",
                      .help = "L2 regularization of the algorithm itself",
                      .range = AtLeast(0),
                      .default_value = 0}),
                 MessageField<&Config::learning_rate_power, &Config::set_learning_rate_power>(
                     {.name = "lr_power",
                      .error_name = "learning_rate_power",
                      .help = "power of the sum of squared gradients in the learning rate",
                      .range = AtMost(0),
                      .default_value = -0.5,
                      .usual = true})},
      .check = [](const Config& config) -> std::optional<FieldConflict> {
        if (config.weight_decay() == 0) return std::nullopt;
        return FieldConflict{.field = "weight_decay",
                             .job_message = "is not a field of ftrl, which has l2 instead",
                             .message =
                                 "weight_decay is set; ftrl computes its weights anew in each update and "
                                 "has l2 instead"};
      },
      .build = [](const v1::OptimizerConfig& config) -> std::unique_ptr<Optimizer> {
        return std::make_unique<FtrlOptimizer>(config);
      }};
}

}  // namespace tandem::ps
#endif  // HWY_ONCE
