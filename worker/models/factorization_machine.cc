// SPDX-License-Identifier: Apache-2.0
#include "worker/models/factorization_machine.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/models/factorization_machine.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::worker {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using D1 = hn::CappedTag<float, 1>;

// Adds up one vector of components of one example over the features, keeps the sums, and returns sum^2 -
// squares.
template <class Tag>
HWY_INLINE hn::Vec<Tag> Component(Tag d, const float* rows, const float* squares, size_t num_rows, size_t dim,
                                  float* sums) {
  auto sum = hn::Zero(d);
  auto square = hn::Zero(d);
  for (size_t f = 0; f < num_rows; ++f) {
    const auto v = hn::LoadU(d, rows + f * dim);
    sum = hn::Add(sum, v);
    square = hn::MulAdd(v, v, square);
  }
  if (squares != nullptr) square = hn::LoadU(d, squares);
  hn::StoreU(sum, d, sums);
  return hn::MulSub(sum, sum, square);
}

void FmForwardT(const ModelInput& input, size_t num_rows, size_t dim, float* sums, float* logits) {
  const D d;
  const D1 d1;
  const size_t lanes = hn::Lanes(d);
  for (size_t b = 0; b < input.batch; ++b) {
    const float* rows = input.embeddings + b * num_rows * dim;
    const float* squares = input.square_sums != nullptr ? input.square_sums + b * dim : nullptr;
    float* sum = sums + b * dim;
    auto total = hn::Zero(d);
    float tail = 0.0f;
    size_t k = 0;
    auto at = [&](const float* p) { return p != nullptr ? p + k : nullptr; };
    for (; k + lanes <= dim; k += lanes) {
      total = hn::Add(total, Component(d, rows + k, at(squares), num_rows, dim, sum + k));
    }
    for (; k < dim; ++k) tail += hn::GetLane(Component(d1, rows + k, at(squares), num_rows, dim, sum + k));
    logits[b] += 0.5f * (hn::GetLane(hn::SumOfLanes(d, total)) + tail);
  }
}

void FmBackwardT(const ModelInput& input, size_t num_rows, size_t dim, const float* sums,
                 const float* d_logits, float* d_rows, float* d_squares) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const bool own_squares = input.square_sums == nullptr;
  for (size_t b = 0; b < input.batch; ++b) {
    const float* sum = sums + b * dim;
    const float g = d_logits[b];
    const auto g_v = hn::Set(d, g);
    for (size_t f = 0; f < num_rows; ++f) {
      const float* row = input.embeddings + (b * num_rows + f) * dim;
      float* out = d_rows + (b * num_rows + f) * dim;
      size_t k = 0;
      for (; k + lanes <= dim; k += lanes) {
        auto v = hn::LoadU(d, sum + k);
        if (own_squares) v = hn::Sub(v, hn::LoadU(d, row + k));
        hn::StoreU(hn::Mul(g_v, v), d, out + k);
      }
      for (; k < dim; ++k) out[k] = g * (own_squares ? sum[k] - row[k] : sum[k]);
    }
    if (!own_squares) {
      for (size_t k = 0; k < dim; ++k) d_squares[b * dim + k] = -0.5f * g;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::worker
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::worker {
HWY_EXPORT(FmForwardT);
HWY_EXPORT(FmBackwardT);

void FactorizationMachine::Forward(const ModelInput& input, absl::Span<float> logits) {
  float* sums = Grow(sums_, input.batch * dim_);
  HWY_DYNAMIC_DISPATCH(FmForwardT)(input, num_sparse_, dim_, sums, logits.data());
}

void FactorizationMachine::Backward(const ModelInput& input, absl::Span<const float> d_logits,
                                    const InputGradients& d_input) const {
  HWY_DYNAMIC_DISPATCH(FmBackwardT)
  (input, num_sparse_, dim_, sums_.data(), d_logits.data(), d_input.embeddings, d_input.square_sums);
}

}  // namespace tandem::worker
#endif  // HWY_ONCE
