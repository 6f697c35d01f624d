// SPDX-License-Identifier: Apache-2.0
#include "ps/optimizers/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/table.h"
#include "tests/testing/every_target.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

std::unique_ptr<Optimizer> Make(const v1::OptimizerConfig& config) {
  auto optimizer = MakeOptimizer(config);
  EXPECT_THAT(optimizer, tandem::testing::IsOk());
  return *std::move(optimizer);
}

v1::OptimizerConfig WithL2(v1::OptimizerConfig config, float l2) {
  config.set_l2(l2);
  return config;
}

v1::OptimizerConfig Modified(v1::OptimizerConfig config, float weight_decay, float clip_row_norm) {
  config.set_weight_decay(weight_decay);
  config.set_clip_row_norm(clip_row_norm);
  return config;
}

v1::OptimizerConfig FtrlWithPower(float power) {
  v1::OptimizerConfig config = Ftrl(0.1f, 0.02f, 0.1f);
  config.set_learning_rate_power(power);
  return config;
}

// One weight in double precision, or, for row-wise Adagrad, a row: written from the papers, with none of the
// production code's rearrangements.
class Reference {
 public:
  Reference(const v1::OptimizerConfig& config, const std::vector<float>& weights)
      : c_(config),
        w_(weights.begin(), weights.end()),
        a_(w_.size(), 0),
        b_(w_.size(), 0),
        largest_(w_.size(), 0) {
    const std::string& kind = c_.kind();
    if (kind == "adagrad" || kind == "rowwise_adagrad") a_.assign(w_.size(), c_.initial_accumulator());
    if (kind == "ftrl") {
      b_.assign(w_.size(), c_.initial_accumulator());
      // z such that the algorithm's closed form gives back the initial weight.
      for (size_t i = 0; i < w_.size(); ++i) {
        const double sign = w_[i] > 0 ? 1 : w_[i] < 0 ? -1 : 0;
        a_[i] = -(w_[i] * (std::pow(b_[i], -c_.learning_rate_power()) / c_.learning_rate() + c_.l2()) +
                  sign * c_.l1());
      }
    }
  }

  void Step(const std::vector<float>& gradient, double scale) {
    const double lr = c_.learning_rate() * scale;
    const std::string& kind = c_.kind();
    ++t_;
    std::vector<double> g(gradient.begin(), gradient.end());
    // Pascanu, Mikolov and Bengio, ICML 2013: a gradient longer than the bound is scaled down to it.
    double length = 0;
    for (const double x : g) length += x * x;
    length = std::sqrt(length);
    if (c_.clip_row_norm() > 0 && length > c_.clip_row_norm()) {
      for (double& x : g) x *= c_.clip_row_norm() / length;
    }
    // Loshchilov and Hutter, ICLR 2019, Algorithm 2: the decay is no part of the gradient.
    for (double& w : w_) w -= lr * c_.weight_decay() * w;
    if (kind != "ftrl") {
      for (size_t i = 0; i < g.size(); ++i) g[i] += c_.l2() * w_[i];
    }
    double mean_square = 0;
    for (const double x : g) mean_square += x * x / static_cast<double>(g.size());
    for (size_t i = 0; i < g.size(); ++i) {
      if (kind == "sgd") {
        w_[i] -= lr * g[i];
      } else if (kind == "momentum") {
        a_[i] = c_.momentum() * a_[i] + g[i];
        w_[i] -= lr * a_[i];
      } else if (kind == "adagrad") {
        a_[i] += g[i] * g[i];
        w_[i] -= lr * g[i] / (std::sqrt(a_[i]) + c_.epsilon());
      } else if (kind == "rowwise_adagrad") {
        a_[i] += mean_square;
        w_[i] -= lr * g[i] / (std::sqrt(a_[i]) + c_.epsilon());
      } else if (kind == "amsgrad") {  // Algorithm 2 of the paper, with an epsilon
        a_[i] = c_.beta1() * a_[i] + (1 - c_.beta1()) * g[i];
        b_[i] = c_.beta2() * b_[i] + (1 - c_.beta2()) * g[i] * g[i];
        largest_[i] = std::max(largest_[i], b_[i]);
        w_[i] -= lr * a_[i] / (std::sqrt(largest_[i]) + c_.epsilon());
      } else if (kind == "adam" || kind == "adamw") {
        a_[i] = c_.beta1() * a_[i] + (1 - c_.beta1()) * g[i];
        b_[i] = c_.beta2() * b_[i] + (1 - c_.beta2()) * g[i] * g[i];
        // As PyTorch's SparseAdam, epsilon is added to the uncorrected root; t_ counts the row's own updates.
        const double rate = lr * std::sqrt(1 - std::pow(c_.beta2(), t_)) / (1 - std::pow(c_.beta1(), t_));
        w_[i] -= rate * a_[i] / (std::sqrt(b_[i]) + c_.epsilon());
      } else if (kind == "ftrl") {
        const double p = -c_.learning_rate_power();
        const double sigma = (std::pow(b_[i] + g[i] * g[i], p) - std::pow(b_[i], p)) / lr;
        a_[i] += g[i] - sigma * w_[i];
        b_[i] += g[i] * g[i];
        const double sign = a_[i] > 0 ? 1 : -1;
        w_[i] =
            std::abs(a_[i]) <= c_.l1() ? 0 : -(a_[i] - sign * c_.l1()) / (std::pow(b_[i], p) / lr + c_.l2());
      } else {
        FAIL() << "no reference for " << kind;
      }
    }
  }
  const std::vector<double>& weights() const { return w_; }

 private:
  const v1::OptimizerConfig c_;
  std::vector<double> w_;
  std::vector<double> a_;        // velocity, accumulator, first moment, z
  std::vector<double> b_;        // second moment, n
  std::vector<double> largest_;  // second moment so far
  int t_ = 0;
};

// A row under test, with guards around weights and state that no update may touch.
class GuardedRow {
 public:
  GuardedRow(const Optimizer& optimizer, const std::vector<float>& weights)
      : dim_(weights.size()),
        state_floats_(optimizer.state_floats(dim_)),
        memory_(dim_ + state_floats_ + 3, kGuard) {
    std::copy(weights.begin(), weights.end(), this->weights());
    optimizer.InitState(this->weights(), state(), dim_);
  }
  float* weights() { return &memory_[1]; }
  float* state() { return &memory_[dim_ + 2]; }
  RowUpdate With(const std::vector<float>& gradient) { return {weights(), state(), gradient.data()}; }
  const std::vector<float>& memory() const { return memory_; }
  void ExpectGuardsIntact() const {
    EXPECT_EQ(memory_.front(), kGuard);
    EXPECT_EQ(memory_[dim_ + 1], kGuard);
    EXPECT_EQ(memory_.back(), kGuard);
  }

 private:
  static constexpr float kGuard = -12345.0f;
  size_t dim_;
  size_t state_floats_;
  std::vector<float> memory_;
};

std::vector<float> RandomVector(CounterRandom* random, size_t dim, float size) {
  std::vector<float> values(dim);
  for (float& v : values) v = size * static_cast<float>(random->Normal());
  return values;
}

struct Case {
  std::string name;
  v1::OptimizerConfig config;
};
std::vector<Case> Cases() {
  return {{"Sgd", Sgd(0.05f)},
          {"SgdL2", WithL2(Sgd(0.05f), 0.1f)},
          {"Momentum", Momentum(0.01f)},
          {"MomentumL2", WithL2(Momentum(0.01f, 0.5f), 0.1f)},
          {"Adagrad", Adagrad(0.1f)},
          {"AdagradL2", WithL2(Adagrad(0.1f, 0.5f, 1e-3f), 0.1f)},
          {"RowwiseAdagrad", RowwiseAdagrad(0.1f)},
          {"RowwiseAdagradL2", WithL2(RowwiseAdagrad(0.1f, 0.5f, 1e-3f), 0.1f)},
          {"Adam", Adam(0.01f)},
          {"AdamL2", WithL2(Adam(0.01f, 0.5f, 0.9f, 1e-3f), 0.1f)},
          {"AdamW", AdamW(0.01f)},
          {"AdamWStrong", AdamW(0.01f, 0.5f, 0.5f, 0.9f, 1e-3f)},
          {"AmsGrad", AmsGrad(0.01f)},
          {"AmsGradL2", WithL2(AmsGrad(0.01f, 0.5f, 0.9f, 1e-3f), 0.1f)},
          {"SgdDecayed", Modified(Sgd(0.05f), 0.1f, 0)},
          {"SgdClipped", Modified(Sgd(0.05f), 0, 0.5f)},
          {"AdagradDecayedAndClipped", Modified(Adagrad(0.1f), 0.1f, 1.0f)},
          {"RowwiseAdagradClipped", Modified(RowwiseAdagrad(0.1f), 0, 0.3f)},
          {"FtrlClipped", Modified(Ftrl(0.1f), 0, 0.5f)},
          {"Ftrl", Ftrl(0.1f)},
          {"FtrlL1L2", Ftrl(0.1f, 0.02f, 0.1f)},
          {"FtrlPower", FtrlWithPower(-0.4f)}};
}

class OptimizerTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Kinds, OptimizerTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(OptimizerTest, FollowsTheDoublePrecisionReferenceOverManySteps) {
  const std::unique_ptr<Optimizer> optimizer = Make(GetParam().config);
  for (const size_t dim : {1, 3, 4, 16, 17, 31, 64, 1100}) {
    CounterRandom random(/*seed=*/3, dim);
    const std::vector<float> initial = RandomVector(&random, dim, 0.5f);
    GuardedRow row(*optimizer, initial);
    Reference reference(GetParam().config, initial);
    for (int step = 0; step < 300; ++step) {
      // A gradient that pulls towards 1, with noise; some steps bring none.
      std::vector<float> gradient = RandomVector(&random, dim, step % 7 == 3 ? 0.0f : 0.3f);
      for (size_t i = 0; i < dim && step % 7 != 3; ++i) gradient[i] += 0.2f * (row.weights()[i] - 1.0f);
      const float scale = step < 100 ? 1.0f : 0.5f;
      const RowUpdate update = row.With(gradient);
      optimizer->Update({&update, 1}, dim, scale);
      reference.Step(gradient, scale);
    }
    for (size_t i = 0; i < dim; ++i) {
      ASSERT_NEAR(row.weights()[i], reference.weights()[i], 5e-5) << "dim " << dim << " element " << i;
    }
    row.ExpectGuardsIntact();
  }
}

TEST_P(OptimizerTest, TheFirstStepIsRightToTheLastDigits) {
  const std::unique_ptr<Optimizer> optimizer = Make(GetParam().config);
  CounterRandom random(/*seed=*/4, 0);
  const std::vector<float> initial = RandomVector(&random, 37, 0.5f),
                           gradient = RandomVector(&random, 37, 1.0f);
  GuardedRow row(*optimizer, initial);
  Reference reference(GetParam().config, initial);
  const RowUpdate update = row.With(gradient);
  optimizer->Update({&update, 1}, 37, 1.0f);
  reference.Step(gradient, 1.0);
  for (size_t i = 0; i < 37; ++i) EXPECT_NEAR(row.weights()[i], reference.weights()[i], 1e-6);
}

TEST_P(OptimizerTest, ManyRowsAtOnceAreUpdatedAsIfOneByOne) {
  const std::unique_ptr<Optimizer> optimizer = Make(GetParam().config);
  constexpr size_t kRows = 9, kDim = 21;
  CounterRandom random(/*seed=*/5, 0);
  std::vector<GuardedRow> together, alone;
  std::vector<std::vector<float>> gradients;
  for (size_t r = 0; r < kRows; ++r) {
    together.emplace_back(*optimizer, RandomVector(&random, kDim, 0.5f));
    alone.push_back(together.back());
    gradients.push_back(RandomVector(&random, kDim, 1.0f));
  }
  for (int step = 0; step < 5; ++step) {
    std::vector<RowUpdate> updates;
    for (size_t r = 0; r < kRows; ++r) {
      updates.push_back(together[r].With(gradients[r]));
      const RowUpdate update = alone[r].With(gradients[r]);
      optimizer->Update({&update, 1}, kDim, 1.0f);
    }
    optimizer->Update(updates, kDim, 1.0f);
  }
  for (size_t r = 0; r < kRows; ++r) EXPECT_EQ(together[r].memory(), alone[r].memory());
  optimizer->Update({}, kDim, 1.0f);  // no rows: nothing to do
}

TEST_P(OptimizerTest, EveryInstructionSetGivesTheSameBits) {
  const std::unique_ptr<Optimizer> optimizer = Make(GetParam().config);
  const auto run = [&] {
    std::vector<float> all;
    for (const size_t dim : {1, 2, 3, 5, 7, 8, 15, 16, 17, 63, 64, 100, 2100}) {
      CounterRandom random(/*seed=*/6, dim);
      GuardedRow row(*optimizer, RandomVector(&random, dim, 0.5f));
      for (int step = 0; step < 20; ++step) {
        const std::vector<float> gradient = RandomVector(&random, dim, 1.0f);
        const RowUpdate update = row.With(gradient);
        optimizer->Update({&update, 1}, dim, 1.0f);
      }
      all.insert(all.end(), row.memory().begin(), row.memory().end());
    }
    return all;
  };
  const std::vector<float> best = run();
  int others = 0;
  tandem::testing::OnEveryTarget([&] {
    EXPECT_EQ(run(), best);
    ++others;
  });
  EXPECT_GE(others, 1);
}

TEST_P(OptimizerTest, ALearningRateOfZeroMovesNoWeight) {
  const std::unique_ptr<Optimizer> optimizer = Make(GetParam().config);
  const std::vector<float> weights = {0.5f, -0.25f, 0.125f, 1.0f, 2.0f};
  GuardedRow row(*optimizer, weights);
  const std::vector<float> gradient(5, 0.75f);
  const RowUpdate update = row.With(gradient);
  optimizer->Update({&update, 1}, 5, 0.0f);
  EXPECT_EQ(std::vector<float>(row.weights(), row.weights() + 5), weights);
}

TEST_P(OptimizerTest, ARowsOwnFactorCountsLikeTheCallsFactor) {
  const std::unique_ptr<Optimizer> optimizer = Make(GetParam().config);
  CounterRandom random(/*seed=*/8, 0);
  const std::vector<float> initial = RandomVector(&random, 21, 0.5f),
                           gradient = RandomVector(&random, 21, 1.0f);
  GuardedRow by_row(*optimizer, initial), by_call(*optimizer, initial);
  RowUpdate update = by_row.With(gradient);
  update.learning_rate_factor = 0.5f;  // a power of two: the same bits wherever it is multiplied in
  optimizer->Update({&update, 1}, 21, 1.0f);
  update = by_call.With(gradient);
  optimizer->Update({&update, 1}, 21, 0.5f);
  EXPECT_EQ(by_row.memory(), by_call.memory());
}

TEST_P(OptimizerTest, TheShareOfABatchScalesTheRegularizationAndNothingElse) {
  const v1::OptimizerConfig& config = GetParam().config;
  v1::OptimizerConfig half = config;
  half.set_weight_decay(config.weight_decay() / 2);
  if (config.kind() != "ftrl") half.set_l2(config.l2() / 2);
  CounterRandom random(/*seed=*/9, 0);
  const std::vector<float> initial = RandomVector(&random, 21, 0.5f),
                           gradient = RandomVector(&random, 21, 1.0f);
  const std::unique_ptr<Optimizer> optimizer = Make(config), halved = Make(half);
  GuardedRow by_share(*optimizer, initial), by_config(*halved, initial);
  for (int step = 0; step < 3; ++step) {
    RowUpdate update = by_share.With(gradient);
    optimizer->Update({&update, 1}, 21, 1.0f, /*batch_share=*/0.5f);
    update = by_config.With(gradient);
    halved->Update({&update, 1}, 21, 1.0f);
  }
  EXPECT_EQ(by_share.memory(), by_config.memory());
}

TEST(WarmUpTest, RisesLinearlyToOneOverThatManyUpdates) {
  v1::OptimizerConfig config = Adagrad(0.1f);
  EXPECT_EQ(Make(config)->WarmUp(1), 1.0f);
  config.set_warmup_updates(4);
  const std::unique_ptr<Optimizer> optimizer = Make(config);
  EXPECT_EQ(optimizer->WarmUp(1), 0.25f);
  EXPECT_EQ(optimizer->WarmUp(3), 0.75f);
  EXPECT_EQ(optimizer->WarmUp(4), 1.0f);
  EXPECT_EQ(optimizer->WarmUp(1000000), 1.0f);
}

TEST(ModifiersTest, WrongValuesAreNamed) {
  using ::tandem::testing::StatusIs;
  using ::testing::HasSubstr;
  EXPECT_THAT(MakeOptimizer(Modified(Sgd(0.1f), -1, 0)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("optimizer.weight_decay is -1")));
  EXPECT_THAT(MakeOptimizer(Modified(Sgd(0.1f), 0, -1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("optimizer.clip_row_norm is -1")));
  EXPECT_THAT(MakeOptimizer(Modified(Ftrl(0.1f), 1, 0)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ftrl")));
}

TEST(OptimizerRegistryTest, AllKindsAreCovered) {
  for (const absl::string_view kind : OptimizerKinds()) {
    bool covered = false;
    for (const Case& c : Cases()) covered = covered || c.config.kind() == kind;
    EXPECT_TRUE(covered) << kind;
  }
}

TEST(OptimizerStateTest, IsAsLongAsTheDesignSays) {
  EXPECT_EQ(Make(Sgd(1))->state_floats(16), 0);
  EXPECT_EQ(Make(Momentum(1))->state_floats(16), 16);
  EXPECT_EQ(Make(Adagrad(1))->state_floats(16), 16);
  EXPECT_EQ(Make(RowwiseAdagrad(1))->state_floats(16), 1);
  EXPECT_EQ(Make(Adam(1))->state_floats(16), 33);
  EXPECT_EQ(Make(AdamW(1))->state_floats(16), 33);
  EXPECT_EQ(Make(AmsGrad(1))->state_floats(16), 48);
  EXPECT_EQ(Make(Ftrl(1))->state_floats(16), 32);
}

TEST(AdamTest, BiasCorrectionIsRightLongAfterItHasSettled) {
  for (const v1::OptimizerConfig& config :
       {Adam(0.001f), Adam(0.001f, 0.0f, 0.0f), Adam(0.001f, 0.9f, 0.99999f)}) {
    const std::unique_ptr<Optimizer> optimizer = Make(config);
    GuardedRow row(*optimizer, {0.0f});
    Reference reference(config, {0.0f});
    CounterRandom random(/*seed=*/7, 0);
    for (int step = 0; step < 70000; ++step) {  // past the table of corrections
      const std::vector<float> gradient = {row.weights()[0] - 1.0f + 0.1f * (random.Uniform() - 0.5f)};
      const RowUpdate update = row.With(gradient);
      optimizer->Update({&update, 1}, 1, 1.0f);
      reference.Step(gradient, 1.0);
    }
    EXPECT_NEAR(row.weights()[0], reference.weights()[0], 1e-3);
    EXPECT_EQ(row.state()[2], 70000.0f);
  }
}

TEST(AdamTest, ARowsStepCountStopsAtTwoToThe24AndUpdatesGoOn) {
  const std::unique_ptr<Optimizer> optimizer = Make(Adam(0.001f));
  GuardedRow row(*optimizer, {1.0f});
  row.state()[2] = 0x1p24f;
  const std::vector<float> gradient = {1.0f};
  const RowUpdate update = row.With(gradient);
  optimizer->Update({&update, 1}, 1, 1.0f);
  EXPECT_EQ(row.state()[2], 0x1p24f);
  // m = .1, v = .001, no correction left.
  EXPECT_NEAR(row.weights()[0], 1.0 - 0.001 * 0.1 / std::sqrt(0.001), 1e-6);
}

TEST(FtrlTest, AnInitialWeightSurvivesAZeroGradientAndL1MakesExactZeros) {
  const std::unique_ptr<Optimizer> optimizer = Make(Ftrl(0.1f, 0.5f, 0.1f));
  GuardedRow row(*optimizer, {0.25f, -0.25f, 0.0f});
  const std::vector<float> none = {0, 0, 0};
  RowUpdate update = row.With(none);
  optimizer->Update({&update, 1}, 3, 1.0f);
  EXPECT_NEAR(row.weights()[0], 0.25f, 1e-6);
  EXPECT_NEAR(row.weights()[1], -0.25f, 1e-6);
  EXPECT_EQ(row.weights()[2], 0.0f);
  const std::vector<float> small = {0, 0, 0.4f};
  update = row.With(small);
  optimizer->Update({&update, 1}, 3, 1.0f);
  EXPECT_EQ(row.weights()[2], 0.0f);  // |z| = .4 is below l1
}

TEST(OptimizerRobustnessTest, HugeAndTinyGradientsLeaveFiniteWeights) {
  for (const v1::OptimizerConfig& config : {Adagrad(0.1f), RowwiseAdagrad(0.1f), Adam(0.1f), Ftrl(0.1f)}) {
    const std::unique_ptr<Optimizer> optimizer = Make(config);
    for (const float size : {1e-38f, 1e-23f, 1e18f, 1e30f}) {
      GuardedRow row(*optimizer, std::vector<float>(5, 0.5f));
      const std::vector<float> gradient(5, size);
      const RowUpdate update = row.With(gradient);
      for (int step = 0; step < 3; ++step) optimizer->Update({&update, 1}, 5, 1.0f);
      for (int i = 0; i < 5; ++i)
        EXPECT_TRUE(std::isfinite(row.weights()[i])) << config.kind() << " " << size;
    }
  }
}

}  // namespace
}  // namespace tandem::ps
