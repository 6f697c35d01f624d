// SPDX-License-Identifier: Apache-2.0
#include "rpc/transport/retry.h"

#include "gtest/gtest.h"

namespace tandem::rpc {
namespace {

double Millis(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

TEST(BackoffTest, GrowsByTheMultiplierUpToTheMaximum) {
  const BackoffOptions options = {
      .initial = absl::Milliseconds(100), .max = absl::Seconds(1), .multiplier = 2, .jitter = 0.5};
  const struct {
    int attempt;
    double random;
    double expected_ms;
  } kCases[] = {
      {0, 0.5, 100},  {1, 0.5, 200},    {2, 0.5, 400},   {3, 0.5, 800},     {4, 0.5, 1000},
      {5, 0.5, 1000}, {0, 0.0, 50},     {0, 0.75, 125},  {3, 0.0, 400},     {3, 0.75, 1000},
      {4, 0.0, 500},  {4, 0.999, 1000}, {60, 0.5, 1000}, {5000, 0.5, 1000}, {5000, 0.0, 500},
  };
  for (const auto& c : kCases) {
    EXPECT_NEAR(Millis(Backoff(c.attempt, options, c.random)), c.expected_ms, 1e-6)
        << "attempt " << c.attempt << ", random " << c.random;
  }
}

TEST(BackoffTest, DefaultsTryOftenEnoughToMeetAServerThatIsJustStarting) {
  const BackoffOptions options;
  absl::Duration total;
  int attempts = 0;
  for (; total < absl::Seconds(5); ++attempts) {
    const absl::Duration wait = Backoff(attempts, options, 0.999);
    EXPECT_LE(wait, absl::Seconds(1));
    total += wait;
  }
  EXPECT_GE(attempts, 8);
  EXPECT_LE(attempts, 20);
}

TEST(BackoffTest, WithoutJitterRandomDoesNotMatter) {
  const BackoffOptions options = {.jitter = 0};
  EXPECT_EQ(Backoff(2, options, 0.0), Backoff(2, options, 0.9));
}

}  // namespace
}  // namespace tandem::rpc
