// SPDX-License-Identifier: Apache-2.0
#include "cli/profiling/overlap.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/profiling/traces.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using testing::TraceBuilder;

constexpr int64_t kSecond = 1'000'000'000;

TEST(Overlap, CountsWallTimeOnceHoweverManyAreUnderWay) {
  const std::vector<CollectedTrace> collected = {
      TraceBuilder("worker/0")
          .Thread(1, "main")
          .Add("train", "wait for rows", 0, 2 * kSecond)
          .Add("train", "forward", 2 * kSecond, 4 * kSecond)
          .Add("train", "backward inputs", 4 * kSecond, 6 * kSecond)
          .Add("ps", "pull", 1 * kSecond, 3 * kSecond, true)
          .Add("ps", "pull", 2 * kSecond, 5 * kSecond, true)
          .Thread(2, "collectives")
          .Add("collective", "all_reduce", 5 * kSecond, 9 * kSecond)
          .Build(),
      TraceBuilder("ps/0").Thread(1, "main").Add("serve", "Pull", 0, kSecond, true).Build()};
  const std::vector<Overlap> overlaps = MeasureOverlap(MakeTimeline(collected));
  ASSERT_EQ(overlaps.size(), 1u);  // servers compute nothing
  const Overlap& overlap = overlaps[0];
  EXPECT_EQ(overlap.member, "worker/0");
  EXPECT_DOUBLE_EQ(overlap.compute, 4);
  EXPECT_DOUBLE_EQ(overlap.pull.seconds, 4);  // 1 to 5
  EXPECT_DOUBLE_EQ(overlap.pull.hidden, 3);   // 2 to 5
  EXPECT_DOUBLE_EQ(overlap.pull.percent(), 75);
  EXPECT_DOUBLE_EQ(overlap.push.seconds, 0);
  EXPECT_DOUBLE_EQ(overlap.all_reduce.hidden, 1);
  EXPECT_DOUBLE_EQ(overlap.all_reduce_backward.percent(), 25);
  const std::string text = OverlapToText(overlaps);
  EXPECT_THAT(
      text,
      HasSubstr("worker/0: computed for 4.00 s; pulls 4.00 s, 75 % of it beside computation; no pushes"));
  EXPECT_THAT(text, HasSubstr("25 % beside the backward pass"));
}

}  // namespace
}  // namespace tandem::cli
