// SPDX-License-Identifier: Apache-2.0
// Modifiers that any optimizer may have: decoupled weight decay, clipping of a row's gradient, warm-up.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ps/optimizers/modifiers.cc"
#include <cmath>

#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "ps/optimizers/registry.h"
#include "ps/optimizers/vector_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

// w -= rate * w.
void DecayRows(absl::Span<const RowUpdate> rows, size_t dim, float rate) {
  for (const RowUpdate& row : rows) {
    const float row_rate = rate * row.learning_rate_factor;
    ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR {
      const auto w = hn::LoadU(d, row.weights + i);
      hn::StoreU(hn::Sub(w, hn::Mul(hn::Set(d, row_rate), w)), d, row.weights + i);
    });
  }
}

// Shortens gradients that are longer than `norm` to this length. The shortened gradients are written to
// `scaled`
// ([rows x dim]), and the rows then point there.
void ClipRows(absl::Span<RowUpdate> rows, size_t dim, float norm, float* scaled) {
  for (size_t r = 0; r < rows.size(); ++r) {
    const float* const gradient = rows[r].gradient;
    const double length = std::sqrt(SumOfSquares(dim, [=](size_t i) HWY_ATTR { return gradient[i]; }));
    if (length <= norm) continue;
    const float scale = static_cast<float>(norm / length);
    float* const to = scaled + r * dim;
    ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR {
      hn::StoreU(hn::Mul(hn::LoadU(d, gradient + i), hn::Set(d, scale)), d, to + i);
    });
    rows[r].gradient = to;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::ps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <utility>
#include <vector>

namespace tandem::ps {
namespace {

HWY_EXPORT(DecayRows);
HWY_EXPORT(ClipRows);

class ModifiedOptimizer : public Optimizer {
 public:
  ModifiedOptimizer(const v1::OptimizerConfig& config, std::unique_ptr<Optimizer> base)
      : base_(std::move(base)),
        decay_(config.learning_rate() * config.weight_decay()),
        clip_row_norm_(config.clip_row_norm()),
        warmup_updates_(config.warmup_updates()) {}
  absl::string_view kind() const override { return base_->kind(); }
  size_t state_floats(size_t dim) const override { return base_->state_floats(dim); }
  void InitState(const float* weights, float* state, size_t dim) const override {
    base_->InitState(weights, state, dim);
  }
  void Update(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate_factor,
              float batch_share) const override {
    if (decay_ > 0) HWY_DYNAMIC_DISPATCH(DecayRows)(rows, dim, decay_ * learning_rate_factor * batch_share);
    if (clip_row_norm_ == 0) return base_->Update(rows, dim, learning_rate_factor, batch_share);
    constexpr size_t kRows = 32;  // a call, so that scaled gradients stay in the cache
    std::vector<float> scaled(std::min(kRows, rows.size()) * dim);
    std::vector<RowUpdate> clipped;
    for (size_t first = 0; first < rows.size(); first += kRows) {
      const absl::Span<const RowUpdate> some = rows.subspan(first, kRows);
      clipped.assign(some.begin(), some.end());
      HWY_DYNAMIC_DISPATCH(ClipRows)(absl::MakeSpan(clipped), dim, clip_row_norm_, scaled.data());
      base_->Update(clipped, dim, learning_rate_factor, batch_share);
    }
  }
  float WarmUp(uint64_t update) const override {
    if (update >= warmup_updates_) return 1.0f;
    return static_cast<float>(static_cast<double>(update) / static_cast<double>(warmup_updates_));
  }

 private:
  const std::unique_ptr<Optimizer> base_;
  const float decay_;  // share of a weight that is lost at a learning rate factor of 1
  const float clip_row_norm_;
  const uint64_t warmup_updates_;
};

}  // namespace

OptimizerField WeightDecay(double default_value) {
  return MessageField<&v1::OptimizerConfig::weight_decay, &v1::OptimizerConfig::set_weight_decay>(
      {.name = "weight_decay",
       .help = "decoupled: a row that is updated first loses lr * weight_decay of itself",
       .range = AtLeast(0),
       .default_value = default_value});
}

std::vector<OptimizerField> ModifierFields() {
  using Config = v1::OptimizerConfig;
  return {
      MessageField<&Config::clip_row_norm, &Config::set_clip_row_norm>(
          {.name = "clip_row_norm",
           .help = "a row's gradient, summed over the update, is scaled down to this L2 norm; 0: no clipping",
           .range = AtLeast(0),
           .default_value = 0,
           .allowed = " (0: no clipping)"}),
      MessageField<&Config::clip_global_norm, &Config::set_clip_global_norm>(
          {.name = "clip_global_norm",
           .help = "a worker's whole push to the table is scaled down to this L2 norm; 0: no clipping",
           .range = AtLeast(0),
           .default_value = 0,
           .allowed = " (0: no clipping)"}),
      MessageField<&Config::warmup_updates, &Config::set_warmup_updates>(
          {.name = "warmup_updates",
           .help = "updates of the table over which the learning rate rises linearly, in addition to the "
                   "schedule; 0: no warm-up",
           .range = AtLeast(0),
           .default_value = 0})};
}

std::unique_ptr<Optimizer> AddModifiers(const v1::OptimizerConfig& config, std::unique_ptr<Optimizer> base) {
  if (config.weight_decay() == 0 && config.clip_row_norm() == 0 && config.warmup_updates() <= 1) return base;
  return std::make_unique<ModifiedOptimizer>(config, std::move(base));
}

}  // namespace tandem::ps
#endif  // HWY_ONCE
