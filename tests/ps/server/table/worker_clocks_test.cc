// SPDX-License-Identifier: Apache-2.0
#include "ps/server/table/worker_clocks.h"

#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

TEST(WorkerClocks, CountsStepsAndRemembersThoseItJumpsOver) {
  WorkerClocks clocks(2);
  clocks.Advance(0, 0);
  clocks.Advance(0, 3);
  EXPECT_EQ(clocks[0], 4);
  EXPECT_EQ(clocks[1], 0);
  EXPECT_EQ(clocks.Min(), 0);
  EXPECT_EQ(clocks.Max(), 4);
  EXPECT_TRUE(clocks.IsDone(0, 0));
  EXPECT_FALSE(clocks.IsDone(0, 1));
  EXPECT_FALSE(clocks.IsDone(0, 2));
  EXPECT_TRUE(clocks.IsDone(0, 3));
  EXPECT_FALSE(clocks.IsDone(0, 4));
  clocks.Advance(0, 1);  // arrives late: the clock stays
  EXPECT_EQ(clocks[0], 4);
  EXPECT_TRUE(clocks.IsDone(0, 1));
  EXPECT_FALSE(clocks.IsDone(0, 2));
}

TEST(WorkerClocks, RemembersTheLastSkippedStepsOnly) {
  WorkerClocks clocks(1);
  clocks.Advance(0, uint64_t{1} << 61);
  EXPECT_FALSE(clocks.IsDone(0, (uint64_t{1} << 61) - WorkerClocks::kMaxSkipped));
  EXPECT_TRUE(clocks.IsDone(0, (uint64_t{1} << 61) - WorkerClocks::kMaxSkipped - 1));
  clocks.Advance(0, (uint64_t{1} << 61) + 2);
  EXPECT_TRUE(clocks.IsDone(0, (uint64_t{1} << 61) - WorkerClocks::kMaxSkipped));
  EXPECT_FALSE(clocks.IsDone(0, (uint64_t{1} << 61) + 1));
}

TEST(WorkerClocks, ResetSetsOneClockAndForgetsItsSkippedSteps) {
  WorkerClocks clocks(2);
  clocks.Advance(0, 5);
  clocks.Advance(1, 5);
  clocks.Reset(0, 9);
  EXPECT_EQ(clocks[0], 9);
  EXPECT_EQ(clocks[1], 6);
  EXPECT_TRUE(clocks.IsDone(0, 4));
  EXPECT_FALSE(clocks.IsDone(1, 4));
}

}  // namespace
}  // namespace tandem::ps
