// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/lr_schedule.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::worker {
namespace {

using ::testing::HasSubstr;

struct Row {
  LearningRateOptions options;
  uint64_t step;
  double rate;
};

TEST(LearningRateScheduleTest, RatesAreThoseOfTheTable) {
  const LearningRateOptions constant{.kind = "constant", .base = 0.1};
  const LearningRateOptions warm{.kind = "constant", .base = 0.1, .warmup_steps = 4};
  const LearningRateOptions step{
      .kind = "step", .base = 1.0, .warmup_steps = 2, .every = 10, .factor = 0.5, .min_lr = 0.2};
  const LearningRateOptions exponential{.kind = "exponential", .base = 1.0, .every = 10, .factor = 0.25};
  const LearningRateOptions cosine{
      .kind = "cosine", .base = 1.0, .warmup_steps = 10, .total_steps = 110, .min_lr = 0.1};
  const Row table[] = {
      {constant, 0, 0.1},    {constant, 1000000, 0.1}, {warm, 0, 0.025},        {warm, 1, 0.05},
      {warm, 3, 0.1},        {warm, 4, 0.1},           {step, 0, 0.5},          {step, 1, 1.0},
      {step, 11, 1.0},  // the first ten steps after the warm-up do not decay
      {step, 12, 0.5},       {step, 22, 0.25},         {step, 32, 0.2},  // 0.125, but for min_lr
      {exponential, 0, 1.0}, {exponential, 5, 0.5},    {exponential, 10, 0.25}, {exponential, 20, 0.0625},
      {cosine, 4, 0.5},      {cosine, 10, 1.0},        {cosine, 60, 0.55},      {cosine, 110, 0.1},
      {cosine, 5000, 0.1},
  };
  for (const Row& row : table) {
    const auto schedule = LearningRateSchedule::Create(row.options);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    EXPECT_NEAR(schedule->At(row.step), row.rate, 1e-12) << row.options.kind << " at " << row.step;
    EXPECT_NEAR(schedule->FactorAt(row.step), row.rate / row.options.base, 1e-12);
  }
}

TEST(LearningRateScheduleTest, APlateauLowersTheRateAfterItsPatience) {
  struct Event {
    double metric;
    bool lowered;
    double rate;
  };
  const Event auc[] = {
      // one metric without improvement is tolerated
      {0.70, false, 1.0},  {0.71, false, 1.0},
      {0.71, false, 1.0},  {0.7105, true, 0.5},  // less than min_delta: the second lowers it
      {0.709, false, 0.5}, {0.72, false, 0.5},   // improved in time
      {NAN, false, 0.5},   {0.70, false, 0.5},   // NaN is no metric
      {NAN, false, 0.5},   {0.70, true, 0.3},    // 0.25, but for min_lr
      {0.70, false, 0.3},  {0.70, false, 0.3},   // no lower
  };
  for (double sign : {1.0, -1.0}) {  // a metric to maximize, and its negation to minimize
    LearningRateOptions options{.kind = "reduce_on_plateau",
                                .base = 1.0,
                                .factor = 0.5,
                                .min_lr = 0.3,
                                .patience = 1,
                                .min_delta = 0.001,
                                .higher_is_better = sign > 0};
    auto schedule = *LearningRateSchedule::Create(options);
    int i = 0;
    for (const Event& event : auc) {
      EXPECT_EQ(schedule.OnMetric(sign * event.metric), event.lowered) << i;
      EXPECT_NEAR(schedule.At(i), event.rate, 1e-12) << i;
      // Saving and restoring at any point changes nothing.
      auto resumed = *LearningRateSchedule::Create(options);
      resumed.Restore(schedule.state());
      schedule = resumed;
      ++i;
    }
  }
}

TEST(LearningRateScheduleTest, OtherKindsIgnoreMetrics) {
  auto schedule = *LearningRateSchedule::Create({.kind = "constant", .base = 0.1, .patience = 0});
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(schedule.OnMetric(0.5));
  EXPECT_EQ(schedule.At(3), 0.1);
}

TEST(LearningRateScheduleTest, RefusalsNameTheField) {
  auto error = [](const LearningRateOptions& options) {
    const absl::Status status = LearningRateSchedule::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error({.kind = "linear"}), HasSubstr("constant, step, exponential, cosine, reduce_on_plateau"));
  EXPECT_THAT(error({.base = 0.0}), HasSubstr("base"));
  EXPECT_THAT(error({.base = 0.1, .min_lr = 0.2}), HasSubstr("min_lr"));
  EXPECT_THAT(error({.factor = 0.0}), HasSubstr("factor"));
  EXPECT_THAT(error({.factor = 1.5}), HasSubstr("factor"));
  EXPECT_THAT(error({.kind = "step", .every = 0}), HasSubstr("every"));
  EXPECT_THAT(error({.kind = "cosine", .warmup_steps = 5, .total_steps = 5}), HasSubstr("total_steps"));
  EXPECT_THAT(error({.patience = -1}), HasSubstr("patience"));
  EXPECT_THAT(error({.min_delta = NAN}), HasSubstr("min_delta"));
}

}  // namespace
}  // namespace tandem::worker
