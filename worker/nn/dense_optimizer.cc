#include "worker/nn/dense_optimizer.h"

#include <cmath>
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

template <class Tag>
HWY_INLINE hn::Vec<Tag> Decayed(Tag d, hn::Vec<Tag> parameter, const float* gradient, float l2) {
  return hn::MulAdd(parameter, hn::Set(d, l2), hn::LoadU(d, gradient));
}

void SgdT(float* p, const float* g, size_t n, float lr, float l2) {
  ForEach(n, [=](auto d, size_t i) {
    const auto w = hn::LoadU(d, p + i);
    hn::StoreU(hn::NegMulAdd(hn::Set(d, lr), Decayed(d, w, g + i, l2), w), d, p + i);
  });
}

void MomentumT(float* p, const float* g, float* velocity, size_t n, float lr, float l2, float momentum) {
  ForEach(n, [=](auto d, size_t i) {
    const auto w = hn::LoadU(d, p + i);
    const auto v = hn::MulAdd(hn::LoadU(d, velocity + i), hn::Set(d, momentum), Decayed(d, w, g + i, l2));
    hn::StoreU(v, d, velocity + i);
    hn::StoreU(hn::NegMulAdd(hn::Set(d, lr), v, w), d, p + i);
  });
}

void AdagradT(float* p, const float* g, float* accumulator, size_t n, float lr, float l2, float epsilon) {
  ForEach(n, [=](auto d, size_t i) {
    const auto w = hn::LoadU(d, p + i);
    const auto gradient = Decayed(d, w, g + i, l2);
    const auto a = hn::MulAdd(gradient, gradient, hn::LoadU(d, accumulator + i));
    hn::StoreU(a, d, accumulator + i);
    const auto root = hn::Add(hn::Sqrt(a), hn::Set(d, epsilon));
    // An accumulator of 0 means that no gradient has come yet; with epsilon 0 too, 0 / 0 must not become a
    // step.
    const auto step = hn::IfThenZeroElse(hn::Eq(gradient, hn::Zero(d)), hn::Div(gradient, root));
    hn::StoreU(hn::NegMulAdd(hn::Set(d, lr), step, w), d, p + i);
  });
}

// `shrink` multiplies the parameter (AdamW), `l2` joins the gradient (Adam); `step_size` and `root_scale`
// carry the bias corrections.
void AdamT(float* p, const float* g, float* first, float* second, size_t n, float shrink, float l2,
           float beta1, float beta2, float epsilon, float step_size, float root_scale) {
  ForEach(n, [=](auto d, size_t i) {
    const auto w = hn::Mul(hn::LoadU(d, p + i), hn::Set(d, shrink));
    const auto gradient = Decayed(d, w, g + i, l2);
    const auto m =
        hn::MulAdd(hn::LoadU(d, first + i), hn::Set(d, beta1), hn::Mul(gradient, hn::Set(d, 1.0f - beta1)));
    const auto v = hn::MulAdd(hn::LoadU(d, second + i), hn::Set(d, beta2),
                              hn::Mul(hn::Mul(gradient, gradient), hn::Set(d, 1.0f - beta2)));
    hn::StoreU(m, d, first + i);
    hn::StoreU(v, d, second + i);
    const auto root = hn::MulAdd(hn::Sqrt(v), hn::Set(d, root_scale), hn::Set(d, epsilon));
    hn::StoreU(hn::NegMulAdd(hn::Set(d, step_size), hn::Div(m, root), w), d, p + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::worker
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::worker {
HWY_EXPORT(SgdT);
HWY_EXPORT(MomentumT);
HWY_EXPORT(AdagradT);
HWY_EXPORT(AdamT);

namespace {

absl::Status OutOfRange(absl::string_view field, float value, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer.", field, " is ", value, "; it must be ", expected));
}

absl::Status CheckOptions(const DenseOptimizerOptions& options) {
  auto fraction = [](float x) { return x >= 0.0f && x < 1.0f; };
  auto amount = [](float x) { return x >= 0.0f && std::isfinite(x); };
  if (!fraction(options.momentum)) return OutOfRange("momentum", options.momentum, "in [0, 1)");
  if (!fraction(options.beta1)) return OutOfRange("beta1", options.beta1, "in [0, 1)");
  if (!fraction(options.beta2)) return OutOfRange("beta2", options.beta2, "in [0, 1)");
  if (!amount(options.epsilon)) return OutOfRange("epsilon", options.epsilon, "at least 0");
  if (!amount(options.initial_accumulator)) {
    return OutOfRange("initial_accumulator", options.initial_accumulator, "at least 0");
  }
  if (!amount(options.weight_decay)) return OutOfRange("weight_decay", options.weight_decay, "at least 0");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DenseOptimizer>> DenseOptimizer::Create(
    const DenseOptimizerOptions& options, const std::vector<ParameterBlock>& blocks) {
  constexpr std::pair<const char*, Kind> kKinds[] = {{"sgd", Kind::kSgd},
                                                     {"momentum", Kind::kMomentum},
                                                     {"adagrad", Kind::kAdagrad},
                                                     {"adam", Kind::kAdam},
                                                     {"adamw", Kind::kAdamW}};
  TANDEM_RETURN_IF_ERROR(CheckOptions(options));
  for (const auto& [name, kind] : kKinds) {
    if (options.kind == name) {
      return std::unique_ptr<DenseOptimizer>(new DenseOptimizer(kind, options, blocks));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("optimizer.kind is \"", options.kind,
                                                 "\"; the kinds are sgd, momentum, adagrad, adam, adamw"));
}

DenseOptimizer::DenseOptimizer(Kind kind, const DenseOptimizerOptions& options,
                               const std::vector<ParameterBlock>& blocks)
    : kind_(kind), options_(options) {
  for (const ParameterBlock& block : blocks) {
    TANDEM_CHECK(block.offset == size_);
    size_ += block.size;
    if (ranges_.empty() || ranges_.back().decay != block.decay) {
      ranges_.push_back({block.offset, size_, block.decay});
    } else {
      ranges_.back().end = size_;
    }
  }
  switch (kind_) {
    case Kind::kSgd:
      break;
    case Kind::kMomentum:
      state_.slots.resize(size_);
      break;
    case Kind::kAdagrad:
      state_.slots.assign(size_, options.initial_accumulator);
      break;
    case Kind::kAdam:
    case Kind::kAdamW:
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
    float* slot = kind_ == Kind::kSgd ? nullptr : state_.slots.data() + range.begin;
    const size_t n = range.end - range.begin;
    const float decay = range.decay ? options_.weight_decay : 0.0f;
    switch (kind_) {
      case Kind::kSgd:
        HWY_DYNAMIC_DISPATCH(SgdT)(p, g, n, learning_rate, decay);
        break;
      case Kind::kMomentum:
        HWY_DYNAMIC_DISPATCH(MomentumT)(p, g, slot, n, learning_rate, decay, options_.momentum);
        break;
      case Kind::kAdagrad:
        HWY_DYNAMIC_DISPATCH(AdagradT)(p, g, slot, n, learning_rate, decay, options_.epsilon);
        break;
      case Kind::kAdam:
      case Kind::kAdamW: {
        const bool decoupled = kind_ == Kind::kAdamW;
        HWY_DYNAMIC_DISPATCH(AdamT)
        (p, g, slot, slot + size_, n, decoupled ? 1.0f - learning_rate * decay : 1.0f,
         decoupled ? 0.0f : decay, options_.beta1, options_.beta2, options_.epsilon,
         static_cast<float>(step_size), static_cast<float>(root_scale));
        break;
      }
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
