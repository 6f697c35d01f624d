// SPDX-License-Identifier: Apache-2.0
#include "replay/limiter/rate_limiter.h"

#include <cmath>
#include <limits>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::replay {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

TEST(RateLimiter, AQueueAlternates) {
  RateLimiter limiter(RateLimit::Queue(2));
  EXPECT_EQ(limiter.SamplesAllowed(0), 0u);
  limiter.Inserted(1);
  EXPECT_TRUE(limiter.MayInsert(1));
  limiter.Inserted(1);
  EXPECT_FALSE(limiter.MayInsert(2));
  EXPECT_EQ(limiter.WhyNoInsert(2), "takes no inserts: 2 inserts x 1 - 0 samples reaches max_diff 2");
  EXPECT_EQ(limiter.SamplesAllowed(2), 2u);
  EXPECT_EQ(limiter.WhyNoSample(2, 3),
            "gives no batch of 3: 2 inserts x 1 - 0 samples allows 2 samples until min_diff 0");
  limiter.Sampled(2);
  EXPECT_EQ(limiter.WhyNoSample(1, 1), "gives no samples: 2 inserts x 1 - 2 samples reaches min_diff 0");
  EXPECT_EQ(limiter.WhyNoSample(0, 1), "gives no samples: it holds 0 items, and min_size is 1");
  EXPECT_TRUE(limiter.MayInsert(0));
}

TEST(RateLimiter, InsertsAlwaysPassBelowMinSize) {
  RateLimiter limiter({.samples_per_insert = 1, .min_diff = 0, .max_diff = 1, .min_size = 3});
  limiter.Inserted(2);
  EXPECT_TRUE(limiter.MayInsert(2));
  EXPECT_FALSE(limiter.MayInsert(3));
}

TEST(RateLimiter, CreditedSamplesCountAsTaken) {
  RateLimiter limiter(RateLimit::Queue(2));
  limiter.Inserted(2);
  EXPECT_FALSE(limiter.MayInsert(2));
  limiter.Credited(1);
  EXPECT_TRUE(limiter.MayInsert(2));
  EXPECT_EQ(limiter.SamplesAllowed(2), 1u);
}

TEST(RateLimiter, RatioKeepsTheRatioWithinTheSlack) {
  const RateLimit limit = RateLimit::Ratio(4, 100, 40);
  EXPECT_THAT(CheckLimit(limit), IsOk());
  RateLimiter limiter(limit);
  limiter.Inserted(100);
  EXPECT_EQ(limiter.SamplesAllowed(100), 40u);
  limiter.Inserted(10);
  EXPECT_FALSE(limiter.MayInsert(110));
}

TEST(CheckLimit, RefusesNumbersOutOfRange) {
  const double nan = std::nan("");
  for (const RateLimit& wrong :
       {RateLimit{.samples_per_insert = 0}, RateLimit{.samples_per_insert = -1},
        RateLimit{.samples_per_insert = nan},
        RateLimit{.samples_per_insert = std::numeric_limits<double>::infinity()}, RateLimit{.min_diff = nan},
        RateLimit{.max_diff = nan}, RateLimit{.max_diff = 1e300}, RateLimit{.min_size = 0},
        RateLimit{.min_size = ~uint64_t{0}},
        RateLimit{.min_diff = std::numeric_limits<double>::infinity()}}) {
    EXPECT_THAT(CheckLimit(wrong), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(CheckLimit(RateLimit()), IsOk());
}

TEST(CheckLimit, RefusesWindowsThatCanDeadlock) {
  EXPECT_THAT(CheckLimit({.samples_per_insert = 4, .min_diff = 0, .max_diff = 3}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least 4 wide")));
  EXPECT_THAT(CheckLimit({.samples_per_insert = 4, .min_diff = 0, .max_diff = 4}), IsOk());
  EXPECT_THAT(CheckLimit({.samples_per_insert = 1.5, .min_diff = 0, .max_diff = 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least 2.5 wide")));
  EXPECT_THAT(CheckLimit({.samples_per_insert = 1.5, .min_diff = 0, .max_diff = 2.5}), IsOk());
}

// Plays random inserts and batches of every size up to LargestBatch, and looks for a state in which neither
// may proceed.
TEST(CheckLimit, AcceptedWindowsNeverDeadlock) {
  CounterRandom random(17, 1);
  int accepted = 0, narrow = 0;
  for (int i = 0; i < 3000; ++i) {
    const double unit = i % 2 == 0 ? 1.0 : 0.25;
    const RateLimit limit = {.samples_per_insert = unit * static_cast<double>(1 + random.Below(8)),
                             .min_diff = unit * (static_cast<double>(random.Below(9)) - 4),
                             .max_diff = unit * static_cast<double>(random.Below(24)),
                             .min_size = 1 + random.Below(3)};
    if (!CheckLimit(limit).ok()) continue;
    ++accepted;
    const uint64_t batch = LargestBatch(limit);
    ASSERT_GE(batch, 1u);
    RateLimiter limiter(limit);
    uint64_t resident = 0;
    for (int step = 0; step < 300; ++step) {
      const bool insert = limiter.MayInsert(resident);
      const bool sample = limiter.SamplesAllowed(resident) >= batch;
      ASSERT_TRUE(insert || sample) << limit.samples_per_insert << " [" << limit.min_diff << ", "
                                    << limit.max_diff << "] batch " << batch << " diff " << limiter.diff();
      if (insert && (!sample || random.Below(2) == 0)) {
        limiter.Inserted(1);
        ++resident;
      } else {
        limiter.Sampled(batch);
      }
      narrow += !(insert && sample);
    }
  }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(narrow, 10000);
}

TEST(LargestBatch, IsUnlimitedWithoutWindow) {
  EXPECT_EQ(LargestBatch(RateLimit::MinSize(5)), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(LargestBatch(RateLimit::Queue(10)), 10u);
  EXPECT_EQ(LargestBatch(RateLimit::Queue(10, 3)), 28u);
}

}  // namespace
}  // namespace tandem::replay
