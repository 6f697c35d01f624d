// SPDX-License-Identifier: Apache-2.0
#include "cli/profiling/clock_offset.h"

#include <cstdlib>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::cli {
namespace {

TEST(ClockOffset, TheTrueOffsetIsWithinTheErrorWhateverTheWaysTake) {
  CounterRandom random(1, 2);
  for (int round = 0; round < 1000; ++round) {
    const int64_t truth = static_cast<int64_t>(random.Below(2'000'000'000'000)) - 1'000'000'000'000;
    ClockOffset offset;
    int64_t now = 5'000'000'000;
    int64_t best = INT64_MAX;
    for (int reading = 0; reading < 8; ++reading) {
      const auto there = static_cast<int64_t>(random.Below(1'000'000)),
                 back = static_cast<int64_t>(random.Below(1'000'000));
      const auto busy = static_cast<int64_t>(random.Below(10'000));
      offset.Add(now, now + there + truth, now + there + busy + truth, now + there + busy + back);
      best = std::min(best, (there + back) / 2 + 1);
      now += 10'000'000;
    }
    ASSERT_TRUE(offset.known());
    EXPECT_LE(std::abs(offset.offset() - truth), offset.error());
    EXPECT_EQ(offset.error(), best);
  }
}

TEST(ClockOffset, ImpossibleReadingsAreIgnored) {
  ClockOffset offset;
  offset.Add(100, 50, 60, 105);  // longer there than the whole way
  offset.Add(100, 60, 50, 200);
  EXPECT_FALSE(offset.known());
}

ClockOffset Exact(int64_t at, int64_t offset) {
  ClockOffset exact;
  exact.Add(at, at + offset, at + offset, at);
  return exact;
}

TEST(ClockLine, FollowsAClockThatDrifts) {
  // 20 parts in a million: theirs is 1000 ns ahead at 0, 21 us ahead a second later.
  const ClockLine line(Exact(0, 1000), Exact(1'000'000'000, 21'000));
  EXPECT_EQ(line.ToOurs(1000), 0);
  EXPECT_EQ(line.ToOurs(1'000'021'000), 1'000'000'000);
  EXPECT_NEAR(static_cast<double>(line.ToOurs(500'011'000)), 500'000'000, 1);
  int64_t last = INT64_MIN;
  for (int64_t theirs = -1000; theirs < 1'100'000'000; theirs += 999'983) {
    EXPECT_GT(line.ToOurs(theirs), last);
    last = line.ToOurs(theirs);
  }
}

TEST(ClockLine, DoesWithOneReadingOrNone) {
  EXPECT_EQ(ClockLine().ToOurs(77), 77);
  EXPECT_EQ(ClockLine().error(), 0);
  EXPECT_EQ(ClockLine(Exact(500, 40), ClockOffset()).ToOurs(140), 100);
  EXPECT_EQ(ClockLine(ClockOffset(), Exact(500, 40)).ToOurs(140), 100);
}

}  // namespace
}  // namespace tandem::cli
