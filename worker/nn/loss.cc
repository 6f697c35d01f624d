// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/loss.h"

#include "base/status.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/nn/loss.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h, once per target.
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::worker {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using D1 = hn::CappedTag<float, 1>;

// exp(-|z|) never overflows, and both the sigmoid and its logarithm follow from it.
template <class Tag, class V = hn::Vec<Tag>>
HWY_INLINE V ExpOfMinusAbs(Tag d, V z) {
  return hn::Exp(d, hn::Neg(hn::Abs(z)));
}

// hn::Exp makes a number of NaN; a sick logit must not pass for a healthy one.
template <class Tag, class V = hn::Vec<Tag>>
HWY_INLINE V SigmoidOf(Tag d, V z, V t) {
  const V one = hn::Set(d, 1.0f);
  const V p = hn::Div(hn::IfThenElse(hn::Lt(z, hn::Zero(d)), t, one), hn::Add(one, t));
  return hn::IfThenElse(hn::IsNaN(z), z, p);
}

// The losses of one vector; the gradients go to d_logits unless null.
template <class Tag, class V = hn::Vec<Tag>>
HWY_INLINE V LossOf(Tag d, const float* logits, const float* labels, float scale, float* d_logits) {
  const V z = hn::LoadU(d, logits);
  const V y = hn::LoadU(d, labels);
  const V t = ExpOfMinusAbs(d, z);
  if (d_logits != nullptr) {
    hn::StoreU(hn::Mul(hn::Sub(SigmoidOf(d, z, t), y), hn::Set(d, scale)), d, d_logits);
  }
  return hn::Add(hn::NegMulAdd(z, y, hn::Max(z, hn::Zero(d))), hn::Log1p(d, t));
}

double LossT(const float* logits, const float* labels, size_t n, float scale, float* d_logits) {
  const D d;
  const D1 d1;
  const hn::Repartition<double, D> dd;
  const hn::Half<D> half;
  const size_t lanes = hn::Lanes(d);
  auto sum = hn::Zero(dd);
  size_t i = 0;
  auto gradients = [&] { return d_logits != nullptr ? d_logits + i : nullptr; };
  for (; i + lanes <= n; i += lanes) {
    const auto loss = LossOf(d, logits + i, labels + i, scale, gradients());
    sum = hn::Add(sum, hn::PromoteTo(dd, hn::LowerHalf(half, loss)));
    sum = hn::Add(sum, hn::PromoteTo(dd, hn::UpperHalf(half, loss)));
  }
  double total = hn::GetLane(hn::SumOfLanes(dd, sum));
  for (; i < n; ++i) total += hn::GetLane(LossOf(d1, logits + i, labels + i, scale, gradients()));
  return total;
}

void SigmoidT(const float* logits, size_t n, float* probabilities) {
  const D d;
  const D1 d1;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto z = hn::LoadU(d, logits + i);
    hn::StoreU(SigmoidOf(d, z, ExpOfMinusAbs(d, z)), d, probabilities + i);
  }
  for (; i < n; ++i) {
    const auto z = hn::LoadU(d1, logits + i);
    hn::StoreU(SigmoidOf(d1, z, ExpOfMinusAbs(d1, z)), d1, probabilities + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::worker
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::worker {
HWY_EXPORT(LossT);
HWY_EXPORT(SigmoidT);

double BinaryCrossEntropy(absl::Span<const float> logits, absl::Span<const float> labels, float scale,
                          absl::Span<float> d_logits) {
  TANDEM_CHECK(labels.size() == logits.size());
  TANDEM_CHECK(d_logits.empty() || d_logits.size() == logits.size());
  if (logits.empty()) return 0.0;
  const double sum = HWY_DYNAMIC_DISPATCH(LossT)(logits.data(), labels.data(), logits.size(), scale,
                                                 d_logits.empty() ? nullptr : d_logits.data());
  return sum / static_cast<double>(logits.size());
}

void Sigmoid(absl::Span<const float> logits, absl::Span<float> probabilities) {
  TANDEM_CHECK(probabilities.size() == logits.size());
  HWY_DYNAMIC_DISPATCH(SigmoidT)(logits.data(), logits.size(), probabilities.data());
}

}  // namespace tandem::worker
#endif  // HWY_ONCE
