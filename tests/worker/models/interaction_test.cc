// SPDX-License-Identifier: Apache-2.0
#include "worker/models/interaction.h"

#include <cmath>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/models/normals.h"

namespace tandem::worker {
namespace {

constexpr float kUntouched = -12345.0f;

// (vectors per example, dim, whether the first vector is separate)
class InteractionTest : public ::testing::TestWithParam<std::tuple<int, int, bool>> {
 protected:
  size_t n_ = std::get<0>(GetParam());
  size_t dim_ = std::get<1>(GetParam());
  bool apart_ = std::get<2>(GetParam());
  size_t num_rest_ = n_ - (apart_ ? 1 : 0);
  size_t pairs_ = Interaction::NumPairs(n_);
  static constexpr size_t kBatch = 3;
  // The first vector of an example is stored before its pairs, as in DLRM.
  size_t head_ = apart_ ? dim_ : 0;
  size_t ld_ = head_ + pairs_ + Interaction::kSlack;
  std::vector<float> x_ = Normals(kBatch * ld_, 1);
  std::vector<float> rest_ = Normals(kBatch * num_rest_ * dim_, 2);

  VectorSet Vectors() {
    return {apart_ ? ConstMatrix{x_.data(), ld_, dim_} : ConstMatrix(), rest_.data(), num_rest_, dim_};
  }
  const float* Row(size_t b, size_t i) {
    if (apart_ && i == 0) return &x_[b * ld_];
    return &rest_[(b * num_rest_ + i - (apart_ ? 1 : 0)) * dim_];
  }
};

TEST_P(InteractionTest, ForwardGivesEveryPairsDotProductInOrder) {
  const std::vector<float> before = x_;
  Interaction interaction;
  interaction.Forward(Vectors(), kBatch, {x_.data() + head_, ld_, pairs_});
  for (size_t b = 0; b < kBatch; ++b) {
    for (size_t k = 0; k < head_; ++k)
      EXPECT_EQ(x_[b * ld_ + k], before[b * ld_ + k]) << "the head was overwritten";
    size_t pair = 0;
    for (size_t i = 0; i < n_; ++i) {
      for (size_t j = i + 1; j < n_; ++j, ++pair) {
        double dot = 0, scale = 0;
        for (size_t k = 0; k < dim_; ++k) {
          dot += double{Row(b, i)[k]} * Row(b, j)[k];
          scale += std::abs(Row(b, i)[k] * Row(b, j)[k]);
        }
        ASSERT_NEAR(x_[b * ld_ + head_ + pair], dot, 1e-6 * scale)
            << "pair " << i << ", " << j << " of example " << b;
      }
    }
  }
}

TEST_P(InteractionTest, BackwardSumsOverEachVectorsPartners) {
  const std::vector<float> d_out = Normals(kBatch * pairs_, 3);
  const std::vector<float> first_before = Normals(kBatch * dim_, 4);
  const std::vector<float> add = Normals(kBatch * num_rest_ * dim_, 5);
  for (bool adds : {false, true}) {
    std::vector<float> d_first = first_before;
    std::vector<float> d_rest(rest_.size() + 1, kUntouched);
    VectorSetGradients dz;
    dz.first = {d_first.data(), dim_, dim_};
    dz.rest = d_rest.data();
    if (adds) dz.rest_add = {add.data(), num_rest_ * dim_, num_rest_ * dim_};
    Interaction interaction;
    interaction.Backward(Vectors(), kBatch, {d_out.data(), pairs_, pairs_}, dz);
    for (size_t b = 0; b < kBatch; ++b) {
      for (size_t i = 0; i < n_; ++i) {
        for (size_t k = 0; k < dim_; ++k) {
          double expected = 0, scale = 0;
          size_t pair = b * pairs_;
          for (size_t p = 0; p < n_; ++p) {
            for (size_t q = p + 1; q < n_; ++q, ++pair) {
              if (p != i && q != i) continue;
              const double term = double{d_out[pair]} * Row(b, p == i ? q : p)[k];
              expected += term;
              scale += std::abs(term);
            }
          }
          float actual;
          if (apart_ && i == 0) {
            expected += first_before[b * dim_ + k];
            actual = d_first[b * dim_ + k];
          } else {
            const size_t at = (b * num_rest_ + i - (apart_ ? 1 : 0)) * dim_ + k;
            if (adds) expected += add[at];
            actual = d_rest[at];
          }
          ASSERT_NEAR(actual, expected, 1e-6 * (scale + 5)) << "vector " << i << " of example " << b;
        }
      }
    }
    EXPECT_EQ(d_rest.back(), kUntouched) << "written behind the end";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, InteractionTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 6, 7, 12, 16, 17, 27, 33, 40),
                                            ::testing::Values(1, 3, 4, 8, 16, 17, 20, 32),
                                            ::testing::Bool()));

}  // namespace
}  // namespace tandem::worker
