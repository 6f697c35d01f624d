// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/dense_optimizer.h"

#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/nn/dense_optimizer.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::worker {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using D1 = hn::CappedTag<float, 1>;

// Calls update(tag, i) for each whole vector and then for each single float left.
template <class Update>
HWY_INLINE void ForEach(size_t n, const Update& update) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) update(d, i);
  for (; i < n; ++i) update(D1(), i);
}

// The strengths of the two kinds of decay in a step: `l2` joins the gradient, `keep` multiplies the
// parameter.
struct Decay {
  float l2 = 0.0f;
  float keep = 1.0f;
};

// The gradient with its coupled decay.
template <class Tag>
HWY_INLINE hn::Vec<Tag> Coupled(Tag d, hn::Vec<Tag> parameter, const float* gradient, Decay decay) {
  return hn::MulAdd(parameter, hn::Set(d, decay.l2), hn::LoadU(d, gradient));
}
// The parameter after its decoupled decay.
template <class Tag>
HWY_INLINE hn::Vec<Tag> Kept(Tag d, hn::Vec<Tag> parameter, Decay decay) {
  return hn::Mul(parameter, hn::Set(d, decay.keep));
}

void SgdT(float* p, const float* g, size_t n, float lr, float l2, float keep) {
  const Decay decay{l2, keep};
  ForEach(n, [=](auto d, size_t i) {
    const auto w = hn::LoadU(d, p + i);
    const auto gradient = Coupled(d, w, g + i, decay);
    hn::StoreU(hn::NegMulAdd(hn::Set(d, lr), gradient, Kept(d, w, decay)), d, p + i);
  });
}

void MomentumT(float* p, const float* g, float* velocity, size_t n, float lr, float l2, float keep,
               float momentum) {
  const Decay decay{l2, keep};
  ForEach(n, [=](auto d, size_t i) {
    const auto w = hn::LoadU(d, p + i);
    const auto gradient = Coupled(d, w, g + i, decay);
    const auto v = hn::MulAdd(hn::LoadU(d, velocity + i), hn::Set(d, momentum), gradient);
    hn::StoreU(v, d, velocity + i);
    hn::StoreU(hn::NegMulAdd(hn::Set(d, lr), v, Kept(d, w, decay)), d, p + i);
  });
}

void AdagradT(float* p, const float* g, float* accumulator, size_t n, float lr, float l2, float keep,
              float epsilon) {
  const Decay decay{l2, keep};
  ForEach(n, [=](auto d, size_t i) {
    const auto w = hn::LoadU(d, p + i);
    const auto gradient = Coupled(d, w, g + i, decay);
    const auto a = hn::MulAdd(gradient, gradient, hn::LoadU(d, accumulator + i));
    hn::StoreU(a, d, accumulator + i);
    const auto root = hn::Add(hn::Sqrt(a), hn::Set(d, epsilon));
    hn::StoreU(hn::NegMulAdd(hn::Set(d, lr), hn::Div(gradient, root), Kept(d, w, decay)), d, p + i);
  });
}

// `step_size` and `root_scale` carry the bias corrections.
void AdamT(float* p, const float* g, float* first, float* second, size_t n, float l2, float keep, float beta1,
           float beta2, float epsilon, float step_size, float root_scale) {
  const Decay decay{l2, keep};
  ForEach(n, [=](auto d, size_t i) {
    const auto w = hn::LoadU(d, p + i);
    const auto gradient = Coupled(d, w, g + i, decay);
    const auto m =
        hn::MulAdd(hn::LoadU(d, first + i), hn::Set(d, beta1), hn::Mul(gradient, hn::Set(d, 1.0f - beta1)));
    const auto v = hn::MulAdd(hn::LoadU(d, second + i), hn::Set(d, beta2),
                              hn::Mul(hn::Mul(gradient, gradient), hn::Set(d, 1.0f - beta2)));
    hn::StoreU(m, d, first + i);
    hn::StoreU(v, d, second + i);
    const auto root = hn::MulAdd(hn::Sqrt(v), hn::Set(d, root_scale), hn::Set(d, epsilon));
    hn::StoreU(hn::NegMulAdd(hn::Set(d, step_size), hn::Div(m, root), Kept(d, w, decay)), d, p + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::worker
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "worker/nn/registry.h"

namespace tandem::worker {

enum class DenseOptimizerRule { kSgd, kMomentum, kAdagrad, kAdam, kAdamW };

HWY_EXPORT(SgdT);
HWY_EXPORT(MomentumT);
HWY_EXPORT(AdagradT);
HWY_EXPORT(AdamT);

namespace {

using Options = DenseOptimizerOptions;
using DenseField = ConfigField<Options>;

// The fields of every kind.
std::vector<DenseField> WithDecay(std::vector<DenseField> own = {}) {
  std::vector<DenseField> fields = {
      MemberField<&Options::l2>({.name = "l2",
                                 .help =
                                     "coupled: l2 * parameter is added to the gradient (`weight_decay` of "
                                     "torch.optim's SGD and Adam); not for biases",
                                 .range = AtLeast(0)}),
      MemberField<&Options::weight_decay>(
          {.name = "weight_decay",
           .help = "decoupled: the parameter first loses lr * weight_decay of itself (`weight_decay` of "
                   "torch.optim's AdamW); not for biases",
           .range = AtLeast(0)})};
  fields.insert(fields.end(), own.begin(), own.end());
  return fields;
}

DenseField Epsilon(Range range) {
  return MemberField<&Options::epsilon>(
      {.name = "epsilon", .help = "added to the square root that divides the step", .range = range});
}

std::vector<DenseField> AdamFields() {
  // Without an epsilon, a parameter that has seen no gradient would divide zero by zero.
  return WithDecay(
      {MemberField<&Options::beta1>(
           {.name = "beta1", .help = "decay of the average of gradients", .range = Fraction()}),
       MemberField<&Options::beta2>(
           {.name = "beta2", .help = "decay of the average of squared gradients", .range = Fraction()}),
       Epsilon(Above(0))});
}

}  // namespace

const DenseOptimizerRegistry& DenseOptimizers() {
  static const auto* const registry = new DenseOptimizerRegistry(
      "optimizer",
      {
          {.name = "sgd", .summary = "p -= lr * g", .fields = WithDecay(), .build = DenseOptimizerRule::kSgd},
          {.name = "momentum",
           .summary = "v = momentum * v + g; p -= lr * v",
           .fields = WithDecay(
               {MemberField<&Options::momentum>({.name = "momentum",
                                                 .help = "share of the velocity that is left after a step",
                                                 .range = Fraction()})}),
           .build = DenseOptimizerRule::kMomentum},
          {.name = "adagrad",
           .summary = "a += g^2; p -= lr * g / (sqrt(a) + epsilon)",
           .reference = "Duchi, Hazan and Singer, JMLR 2011",
           .fields = WithDecay(
               {Epsilon(AtLeast(0)),
                MemberField<&Options::initial_accumulator>(
                    {.name = "initial_accumulator",
                     .help = "sum of squared gradients at the start; with an `epsilon` of 0 it must "
                             "be greater than 0",
                     .range = AtLeast(0)})}),
           // A parameter without a gradient would be divided by zero.
           .check = [](const Options& o) -> std::optional<FieldConflict> {
             if (o.epsilon != 0 || o.initial_accumulator != 0) return std::nullopt;
             return FieldConflict{
                 .field = "epsilon",
                 .job_message =
                     "and 'initial_accumulator' are both 0: a parameter without a gradient would be "
                     "divided by zero; make one of them greater than 0",
                 .message = "epsilon and initial_accumulator are both 0; one of them must be > 0"};
           },
           .build = DenseOptimizerRule::kAdagrad},
          {.name = "adam",
           .summary = "averages of g and of g^2 with bias correction",
           .reference = "Kingma and Ba, ICLR 2015",
           .fields = AdamFields(),
           .build = DenseOptimizerRule::kAdam},
          {.name = "adamw",
           .summary = "Adam; set its `weight_decay`",
           .reference = "Loshchilov and Hutter, ICLR 2019",
           .fields = AdamFields(),
           .build = DenseOptimizerRule::kAdamW},
      });
  return *registry;
}

absl::StatusOr<std::unique_ptr<DenseOptimizer>> DenseOptimizer::Create(
    const DenseOptimizerOptions& options, const std::vector<ParameterBlock>& blocks) {
  TANDEM_ASSIGN_OR_RETURN(const DenseOptimizerKind* const kind, DenseOptimizers().Get(options.kind));
  TANDEM_RETURN_IF_ERROR(DenseOptimizers().ValidateAllFields(*kind, options));
  return std::unique_ptr<DenseOptimizer>(new DenseOptimizer(kind->build, options, blocks));
}

DenseOptimizer::DenseOptimizer(DenseOptimizerRule rule, const DenseOptimizerOptions& options,
                               const std::vector<ParameterBlock>& blocks)
    : rule_(rule), options_(options) {
  for (const ParameterBlock& block : blocks) {
    TANDEM_CHECK(block.offset == size_);
    size_ += block.size;
    if (ranges_.empty() || ranges_.back().decay != block.decay) {
      ranges_.push_back({block.offset, size_, block.decay});
    } else {
      ranges_.back().end = size_;
    }
  }
  switch (rule_) {
    case DenseOptimizerRule::kSgd:
      break;
    case DenseOptimizerRule::kMomentum:
      state_.slots.resize(size_);
      break;
    case DenseOptimizerRule::kAdagrad:
      state_.slots.assign(size_, options.initial_accumulator);
      break;
    case DenseOptimizerRule::kAdam:
    case DenseOptimizerRule::kAdamW:
      state_.slots.resize(2 * size_);
      break;
  }
}

void DenseOptimizer::Step(float learning_rate, absl::Span<const float> gradients,
                          absl::Span<float> parameters) {
  TANDEM_CHECK(parameters.size() == size_);
  TANDEM_CHECK(gradients.size() == size_);
  ++state_.steps;
  const double t = static_cast<double>(state_.steps);
  const double step_size = learning_rate / (1.0 - std::pow(static_cast<double>(options_.beta1), t));
  const double root_scale = 1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(options_.beta2), t));
  for (const Range& range : ranges_) {
    float* p = parameters.data() + range.begin;
    const float* g = gradients.data() + range.begin;
    float* slot = rule_ == DenseOptimizerRule::kSgd ? nullptr : state_.slots.data() + range.begin;
    const size_t n = range.end - range.begin;
    const float l2 = range.decay ? options_.l2 : 0.0f;
    const float keep = range.decay ? 1.0f - learning_rate * options_.weight_decay : 1.0f;
    switch (rule_) {
      case DenseOptimizerRule::kSgd:
        HWY_DYNAMIC_DISPATCH(SgdT)(p, g, n, learning_rate, l2, keep);
        break;
      case DenseOptimizerRule::kMomentum:
        HWY_DYNAMIC_DISPATCH(MomentumT)
        (p, g, slot, n, learning_rate, l2, keep, options_.momentum);
        break;
      case DenseOptimizerRule::kAdagrad:
        HWY_DYNAMIC_DISPATCH(AdagradT)
        (p, g, slot, n, learning_rate, l2, keep, options_.epsilon);
        break;
      case DenseOptimizerRule::kAdam:
      case DenseOptimizerRule::kAdamW:
        HWY_DYNAMIC_DISPATCH(AdamT)
        (p, g, slot, slot + size_, n, l2, keep, options_.beta1, options_.beta2, options_.epsilon,
         static_cast<float>(step_size), static_cast<float>(root_scale));
        break;
    }
  }
}

absl::Status DenseOptimizer::Restore(DenseOptimizerState state) {
  if (state.slots.size() != state_.slots.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the dense optimizer's state has ", state.slots.size(), " values, but ", options_.kind, " over ",
        size_, " parameters keeps ", state_.slots.size(), "; was it saved for another model or optimizer?"));
  }
  state_ = std::move(state);
  return absl::OkStatus();
}

}  // namespace tandem::worker
#endif  // HWY_ONCE
