// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/dense_optimizer.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::worker {
namespace {

using ::testing::HasSubstr;

constexpr int kWeights = 37;  // two vectors and a remainder
constexpr int kBiases = 5;

std::vector<ParameterBlock> Blocks() {
  ParameterBlock weight{.name = "w", .shape = {kWeights}, .offset = 0, .size = kWeights, .decay = true};
  ParameterBlock bias{.name = "b", .shape = {kBiases}, .offset = kWeights, .size = kBiases, .decay = false};
  ParameterBlock more{.name = "w2", .shape = {3}, .offset = kWeights + kBiases, .size = 3, .decay = true};
  return {weight, bias, more};
}
constexpr size_t kSize = kWeights + kBiases + 3;

// Updates one parameter in double precision, as torch.optim documents it: `l2` as the weight_decay of its
// SGD, `decay` as that of its AdamW.
struct ReferenceStep {
  double p = 0, a = 0, b = 0;
  int t = 0;
  void Step(const DenseOptimizerOptions& o, double lr, double g, double l2, double decay) {
    ++t;
    g += l2 * p;
    p -= lr * decay * p;
    if (o.kind == "sgd") {
      p -= lr * g;
    } else if (o.kind == "momentum") {
      a = o.momentum * a + g;
      p -= lr * a;
    } else if (o.kind == "adagrad") {
      a += g * g;
      p -= g == 0 ? 0 : lr * g / (std::sqrt(a) + o.epsilon);
    } else {
      a = o.beta1 * a + (1 - o.beta1) * g;
      b = o.beta2 * b + (1 - o.beta2) * g * g;
      p -= lr * (a / (1 - std::pow(o.beta1, t))) / (std::sqrt(b / (1 - std::pow(o.beta2, t))) + o.epsilon);
    }
  }
};

class DenseOptimizerTest : public ::testing::TestWithParam<const char*> {};

TEST_P(DenseOptimizerTest, FollowsTheDoublePrecisionReference) {
  for (const auto& [l2, weight_decay] :
       {std::pair(0.0f, 0.0f), std::pair(0.1f, 0.0f), std::pair(0.0f, 0.1f), std::pair(0.2f, 0.1f)}) {
    DenseOptimizerOptions options;
    options.kind = GetParam();
    options.l2 = l2;
    options.weight_decay = weight_decay;
    options.initial_accumulator = 0.1f;
    auto optimizer = *DenseOptimizer::Create(options, Blocks());
    CounterRandom random(1, 1);
    std::vector<float> p(kSize), g(kSize);
    std::vector<ReferenceStep> reference(kSize);
    for (size_t i = 0; i < kSize; ++i) {
      p[i] = static_cast<float>(random.Normal());
      reference[i].p = p[i];
      if (options.kind == "adagrad") reference[i].a = options.initial_accumulator;
    }
    for (int step = 0; step < 50; ++step) {
      const float lr = 0.01f / (1 + step);
      for (size_t i = 0; i < kSize; ++i) {
        g[i] = i == 3 ? 0.0f : static_cast<float>(random.Normal());
        const bool decays = i < kWeights || i >= kWeights + kBiases;
        reference[i].Step(options, lr, g[i], decays ? l2 : 0.0, decays ? weight_decay : 0.0);
      }
      optimizer->Step(lr, g, absl::MakeSpan(p));
      for (size_t i = 0; i < kSize; ++i) ASSERT_NEAR(p[i], reference[i].p, 2e-6 * (1 + std::abs(p[i]))) << i;
    }
    EXPECT_EQ(optimizer->steps(), 50u);
  }
}

TEST_P(DenseOptimizerTest, ResumesFromItsStateBitByBit) {
  DenseOptimizerOptions options;
  options.kind = GetParam();
  options.l2 = 0.02f;
  options.weight_decay = 0.01f;
  auto whole = *DenseOptimizer::Create(options, Blocks());
  std::vector<float> p(kSize, 1.0f), g(kSize);
  auto gradient = [&](int step) {
    CounterRandom random(2, step);
    for (float& v : g) v = static_cast<float>(random.Normal());
  };
  for (int step = 0; step < 5; ++step) {
    gradient(step);
    whole->Step(0.1f, g, absl::MakeSpan(p));
  }
  auto resumed = *DenseOptimizer::Create(options, Blocks());
  ASSERT_TRUE(resumed->Restore(whole->state()).ok());
  std::vector<float> q = p;
  for (int step = 5; step < 10; ++step) {
    gradient(step);
    whole->Step(0.1f, g, absl::MakeSpan(p));
    resumed->Step(0.1f, g, absl::MakeSpan(q));
  }
  EXPECT_EQ(p, q);
}

TEST_P(DenseOptimizerTest, AZeroGradientWithoutDecayLeavesNoNan) {
  DenseOptimizerOptions options;
  options.kind = GetParam();
  options.epsilon = options.kind == std::string("adagrad") ? 0.0f : 1e-8f;
  options.initial_accumulator = 1e-30f;
  auto optimizer = *DenseOptimizer::Create(options, Blocks());
  std::vector<float> p(kSize, 1.0f), g(kSize, 0.0f);
  optimizer->Step(0.1f, g, absl::MakeSpan(p));
  EXPECT_THAT(p, ::testing::Each(1.0f));
}

INSTANTIATE_TEST_SUITE_P(Kinds, DenseOptimizerTest,
                         ::testing::Values("sgd", "momentum", "adagrad", "adam", "adamw"),
                         [](const auto& info) { return std::string(info.param); });

TEST(DenseOptimizerOptionsTest, RefusalsNameTheField) {
  auto error = [](DenseOptimizerOptions options) {
    const absl::Status status = DenseOptimizer::Create(options, Blocks()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error({.kind = "adamm"}), HasSubstr("adagrad, adam, adamw"));
  EXPECT_THAT(error({.momentum = 1.0f}), HasSubstr("optimizer.momentum is 1"));
  EXPECT_THAT(error({.beta1 = -0.1f}), HasSubstr("beta1"));
  EXPECT_THAT(error({.beta2 = NAN}), HasSubstr("beta2"));
  EXPECT_THAT(error({.epsilon = -1.0f}), HasSubstr("epsilon"));
  EXPECT_THAT(error({.initial_accumulator = -1.0f}), HasSubstr("initial_accumulator"));
  EXPECT_THAT(error({.l2 = -0.5f}), HasSubstr("optimizer.l2 is -0.5"));
  EXPECT_THAT(error({.weight_decay = INFINITY}), HasSubstr("weight_decay"));
}

TEST(DenseOptimizerOptionsTest, AnAdagradThatWouldDivideByZeroIsRefused) {
  DenseOptimizerOptions options{.kind = "adagrad", .epsilon = 0.0f};
  EXPECT_THAT(std::string(DenseOptimizer::Create(options, Blocks()).status().message()),
              HasSubstr("optimizer.epsilon and initial_accumulator are both 0"));
  options.initial_accumulator = 0.1f;
  EXPECT_TRUE(DenseOptimizer::Create(options, Blocks()).ok());
}

TEST(DenseOptimizerOptionsTest, AStateOfAnotherSizeIsRefusedAndChangesNothing) {
  auto optimizer = *DenseOptimizer::Create({.kind = "adam"}, Blocks());
  DenseOptimizerState state;
  state.steps = 9;
  state.slots.resize(kSize);
  const absl::Status status = optimizer->Restore(state);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("keeps 90"));
  EXPECT_EQ(optimizer->steps(), 0u);
}

}  // namespace
}  // namespace tandem::worker
