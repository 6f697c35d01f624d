// SPDX-License-Identifier: Apache-2.0
#include "worker/report/progress.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::worker {
namespace {

using ::testing::HasSubstr;

TEST(ProgressTest, TheLineSaysHowFarHowFastHowGoodAndHowStale) {
  SimulatedClock clock;
  Progress progress(/*silent=*/true, /*terminal=*/false, absl::Seconds(1), &clock);
  progress.BeginEpoch(2, 10, 1000);
  clock.Advance(absl::Seconds(5));
  progress.Step(500, 0.25, [] { return 0.0; });
  const std::string line = progress.Line(3.5);
  EXPECT_THAT(line, HasSubstr("epoch 2/10 [============            ]  50%"));
  EXPECT_THAT(line, HasSubstr(" 100 samples/s"));
  EXPECT_THAT(line, HasSubstr("loss 0.2500"));
  EXPECT_THAT(line, HasSubstr("staleness 3.5"));
  EXPECT_THAT(line, HasSubstr("5s left"));
  EXPECT_THAT(progress.Line({3.5, 0.25}), HasSubstr("staleness 3.5 (rows 0.25)  5s left"));
  EXPECT_THAT(progress.Line(Progress::Staleness::SynchronousStart()),
              HasSubstr("loss 0.2500  synchronous start  5s left"));
}

TEST(ProgressTest, StalenessIsAskedForOnlyWhenALineIsDue) {
  SimulatedClock clock;
  Progress progress(/*silent=*/false, /*terminal=*/false, absl::Seconds(1), &clock);
  progress.BeginEpoch(1, 1, 100);
  int asked = 0;
  auto staleness = [&] { return static_cast<double>(++asked); };
  progress.Step(20, 1.0, staleness);
  EXPECT_EQ(asked, 0);  // no second has passed
  clock.Advance(absl::Seconds(2));
  progress.Step(20, 1.0, staleness);
  EXPECT_EQ(asked, 1);
  clock.Advance(absl::Seconds(2));
  progress.Step(1, 1.0, staleness);
  EXPECT_EQ(asked, 1);  // not on a terminal: at most one line per tenth of the epoch
  clock.Advance(absl::Seconds(2));
  progress.Step(20, 1.0, staleness);
  EXPECT_EQ(asked, 2);
}

TEST(ProgressTest, EmptyAndOverfullEpochsAreNoError) {
  SimulatedClock clock;
  Progress progress(true, false, absl::Seconds(1), &clock);
  progress.BeginEpoch(1, 1, 0);
  EXPECT_THAT(progress.Line(0), HasSubstr("  0%"));
  progress.BeginEpoch(1, 1, 10);
  progress.Step(20, 1.0, [] { return 0.0; });  // padding repeats examples
  EXPECT_THAT(progress.Line(0), HasSubstr("100%"));
}

}  // namespace
}  // namespace tandem::worker
