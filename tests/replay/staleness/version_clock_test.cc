// SPDX-License-Identifier: Apache-2.0
#include "replay/staleness/version_clock.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/staleness/staleness_options.h"
#include "tests/testing/status_matchers.h"

namespace tandem::replay {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

TEST(VersionClock, TranslatesCountsOfTheLearnerToPositions) {
  VersionClock clock;
  uint64_t sampled = 40;
  TANDEM_ASSERT_OK(clock.Commit({.epoch = 1, .version = 7, .items_consumed = 1000}, &sampled));
  EXPECT_EQ(clock.consumed(), 40u) << "what an earlier learner sampled counts as consumed";
  TANDEM_ASSERT_OK(clock.Commit({.epoch = 1, .version = 8, .items_consumed = 1032}, &sampled));
  EXPECT_EQ(clock.consumed(), 72u);
  EXPECT_EQ(sampled, 72u) << "the learner has consumed more than this table knew";
  EXPECT_EQ(clock.commits(), 2u);
  sampled = 100;
  TANDEM_ASSERT_OK(clock.Commit({.epoch = 2, .version = 9, .items_consumed = 1016}, &sampled));
  EXPECT_EQ(clock.consumed(), 100u) << "a learner that resumes has lost what it had not used";
  EXPECT_EQ(sampled, 100u);
}

// The clock of a table that was restored from a checkpoint.
TEST(VersionClock, CountsTheCommitsThatItHasMissedByTheItemsConsumed) {
  VersionClock clock;
  uint64_t sampled = 0;
  constexpr uint64_t kItems = 4;  // in a commit
  TANDEM_ASSERT_OK(clock.Commit({.epoch = 1, .version = 5, .items_consumed = 20}, &sampled, kItems));
  EXPECT_EQ(clock.commits(), 1u);
  TANDEM_ASSERT_OK(clock.Commit({.epoch = 1, .version = 6, .items_consumed = 24}, &sampled, kItems));
  EXPECT_EQ(clock.commits(), 2u);
  TANDEM_ASSERT_OK(clock.Commit({.epoch = 1, .version = 9, .items_consumed = 36}, &sampled, kItems));
  EXPECT_EQ(clock.commits(), 5u);
  // The first commit of a learner that resumes, after two that were missed.
  TANDEM_ASSERT_OK(clock.Commit({.epoch = 2, .version = 12, .items_consumed = 44}, &sampled, kItems));
  EXPECT_EQ(clock.commits(), 8u);
  // The first commit of one that has lost its last updates.
  TANDEM_ASSERT_OK(clock.Commit({.epoch = 3, .version = 13, .items_consumed = 40}, &sampled, kItems));
  EXPECT_EQ(clock.commits(), 9u);
}

TEST(VersionClock, ARepeatedCommitHasNoEffect) {
  VersionClock clock;
  uint64_t sampled = 0;
  const CommittedVersion version = {.epoch = 1, .version = 1, .items_consumed = 32};
  TANDEM_ASSERT_OK(clock.Commit(version, &sampled));
  TANDEM_ASSERT_OK(clock.Commit(version, &sampled));
  EXPECT_EQ(clock.commits(), 1u);
}

TEST(VersionClock, RefusesEarlierVersionsAndEpochsAndNamesTheHead) {
  VersionClock clock;
  uint64_t sampled = 0;
  TANDEM_ASSERT_OK(clock.Commit({.epoch = 3, .version = 5, .items_consumed = 64}, &sampled));
  constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(clock.Commit({.epoch = 3, .version = 5, .items_consumed = 65}, &sampled),
              StatusIs(kFailed, HasSubstr("cannot follow version 5 of epoch 3: publish a version above it")));
  EXPECT_THAT(clock.Commit({.epoch = 4, .version = 4}, &sampled), StatusIs(kFailed, HasSubstr("above it")));
  EXPECT_THAT(clock.Commit({.epoch = 2, .version = 6, .items_consumed = 70}, &sampled),
              StatusIs(kFailed, HasSubstr("another learner has taken over")));
  EXPECT_THAT(clock.Commit({.epoch = 3, .version = 6, .items_consumed = 63}, &sampled),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a new epoch")));
  EXPECT_EQ(clock.head().version, 5);
  EXPECT_EQ(clock.commits(), 1u);
}

TEST(StalenessOptions, OptionsOutOfRangeAreNamed) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto pace = [](auto change) {
    StalenessOptions options = {.kind = StalenessKind::kPace};
    change(options);
    return CheckStaleness(options);
  };
  TANDEM_EXPECT_OK(pace([](auto&) {}));
  EXPECT_THAT(pace([](auto& o) { o.batch = 0; }), StatusIs(kInvalid, HasSubstr("batch is 0")));
  EXPECT_THAT(pace([](auto& o) { o.max_lag = 2'000'000; }), StatusIs(kInvalid, HasSubstr("max_lag")));
  EXPECT_THAT(pace([](auto& o) { o.batch = o.every = 1u << 31; }), StatusIs(kInvalid, HasSubstr("2^31")));
  EXPECT_THAT(pace([](auto& o) { o.lease = absl::Milliseconds(1); }), StatusIs(kInvalid, HasSubstr("lease")));
  EXPECT_THAT(pace([](auto& o) { o.max_rollout = absl::Seconds(1); }),
              StatusIs(kInvalid, HasSubstr("lease")));
  EXPECT_THAT(pace([](auto& o) { o.slow = static_cast<SlowRollouts>(9); }),
              StatusIs(kInvalid, HasSubstr("9")));
  EXPECT_THAT(ParseSlowRollouts("later"), StatusIs(kInvalid, HasSubstr("wait, take or drop")));
  EXPECT_EQ(*ParseSlowRollouts("drop"), SlowRollouts::kDrop);
}

}  // namespace
}  // namespace tandem::replay
