// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/loss.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"

namespace tandem::worker {
namespace {

// The loss in double precision, computed in the same stable way.
double Loss(double z, double y) { return std::max(z, 0.0) - z * y + std::log1p(std::exp(-std::abs(z))); }
double P(double z) { return z >= 0 ? 1 / (1 + std::exp(-z)) : std::exp(z) / (1 + std::exp(z)); }

TEST(LossTest, MatchesDoublePrecisionForEveryLength) {
  CounterRandom random(1, 1);
  for (size_t n : {1, 2, 3, 15, 16, 17, 33, 100}) {
    std::vector<float> z(n), y(n), d(n);
    double expected = 0;
    for (size_t i = 0; i < n; ++i) {
      z[i] = static_cast<float>(random.Normal() * 4);
      y[i] = random.Uniform() < 0.3f ? 1.0f : 0.0f;
      expected += Loss(z[i], y[i]) / n;
    }
    EXPECT_NEAR(BinaryCrossEntropy(z, y, 0.5f, absl::MakeSpan(d)), expected, 1e-6 * expected);
    for (size_t i = 0; i < n; ++i) EXPECT_NEAR(d[i], 0.5 * (P(z[i]) - y[i]), 1e-6);
    EXPECT_NEAR(BinaryCrossEntropy(z, y, 0.5f, {}), expected, 1e-6 * expected);
    std::vector<float> p(n);
    Sigmoid(z, absl::MakeSpan(p));
    for (size_t i = 0; i < n; ++i) EXPECT_NEAR(p[i], P(z[i]), 1e-6);
  }
}

TEST(LossTest, ExtremeLogitsStayFiniteAndExact) {
  const float huge = std::numeric_limits<float>::max();
  for (size_t n : {1, 40}) {  // the scalar remainder and whole vectors
    for (float z : {-100.0f, 100.0f, -1e4f, 1e4f, 0.0f, -0.0f, huge, -huge}) {
      for (float y : {0.0f, 1.0f}) {
        const std::vector<float> logits(n, z), labels(n, y);
        std::vector<float> d(n, 7.0f);
        EXPECT_NEAR(BinaryCrossEntropy(logits, labels, 1.0f, absl::MakeSpan(d)), Loss(z, y),
                    1e-6 * (1e-30 + std::abs(Loss(z, y))))
            << z << " " << y;
        for (float g : d) EXPECT_NEAR(g, P(z) - y, 1e-6) << z << " " << y;
      }
    }
  }
}

TEST(LossTest, ConfidentlyRightKeepsItsSmallLoss) {
  // log1p(exp(-30)) must not round to 0 through 1 + exp(-30).
  EXPECT_NEAR(BinaryCrossEntropy(std::vector<float>{30.0f}, std::vector<float>{1.0f}, 1.0f, {}),
              std::exp(-30.0), 1e-6 * std::exp(-30.0));
}

TEST(LossTest, NanShowsAndEmptyIsZero) {
  for (size_t n : {1, 40}) {
    std::vector<float> logits(n, 0.0f), labels(n, 0.0f), d(n);
    logits[n / 2] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(BinaryCrossEntropy(logits, labels, 1.0f, absl::MakeSpan(d))));
    EXPECT_TRUE(std::isnan(d[n / 2]));
    Sigmoid(logits, absl::MakeSpan(d));
    EXPECT_TRUE(std::isnan(d[n / 2]));
  }
  EXPECT_EQ(BinaryCrossEntropy({}, {}, 1.0f, {}), 0.0);
}

TEST(LossTest, LabelsMayBeSoft) {
  EXPECT_NEAR(BinaryCrossEntropy(std::vector<float>{0.3f}, std::vector<float>{0.25f}, 1.0f, {}),
              Loss(0.3f, 0.25), 1e-6);
}

}  // namespace
}  // namespace tandem::worker
