// SPDX-License-Identifier: Apache-2.0
// Tables that are made while a job runs: by its workers, which are at some step already, and by processes of
// other ranks, such as notebooks.

#include <string>

#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/server/count_pushes.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kRefused = absl::StatusCode::kInvalidArgument;

class LateTable : public ::testing::TestWithParam<v1::UpdateMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, LateTable, ::testing::Values(Sync(), Bounded(2), Async(), Gba(8, 2)));

TEST_P(LateTable, BeginsAtTheStepOfItsWorkers) {
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(CountTable(2, GetParam()), /*first_step=*/1000));
  for (uint64_t step = 1000; step < 1003; ++step) {
    for (const uint32_t worker : {0, 1}) TANDEM_ASSERT_OK(server.Pull(worker, step, {{"user", {kShared}}}));
    for (const uint32_t worker : {0, 1}) {
      TANDEM_ASSERT_OK(server.Push({.worker = worker, .step = step}, {CountPush(worker, step)}));
    }
  }
  TANDEM_ASSERT_OK(server.Flush("user"));
  EXPECT_EQ(CountOf(server, kShared, "user", 1003), 6.0f);
}

TEST(LateTableTest, ATableThatExistsKeepsItsClocks) {
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(CountTable(1, Sync())));
  TANDEM_ASSERT_OK(server.Push({.step = 0}, {CountPush(0, 0)}));
  TANDEM_ASSERT_OK(server.CreateTable(CountTable(1, Sync()), /*first_step=*/7));
  EXPECT_THAT(server.Push({.step = 0, .sequence = 2}, {CountPush(0, 0)}),
              StatusIs(kRefused, HasSubstr("next is step 1")));
  EXPECT_THAT(server.CreateTable(CountTable(1, Sync(), "far"), ~uint64_t{0}),
              StatusIs(kRefused, HasSubstr("first_step")));
}

TEST_P(LateTable, OfAnOutsideProcessHasItAsItsOnlyWorker) {
  Driver server;
  v1::TableConfig config = CountTable(1, GetParam());
  config.set_first_worker(5);
  TANDEM_ASSERT_OK(server.CreateTable(config));
  for (uint64_t step = 0; step < 4; ++step) {
    TANDEM_ASSERT_OK(server.Pull(5, step, {{"user", {kShared}}}));
    TANDEM_ASSERT_OK(server.Push({.worker = 5, .step = step}, {CountPush(5, step)}));
  }
  TANDEM_ASSERT_OK(server.Flush("user"));
  EXPECT_EQ(CountOf(server, kShared, "user", 4), 4.0f);
  const bool async = GetParam().kind() == v1::UpdateMode::ASYNC;
  for (const uint32_t other : {0, 4, 6}) {
    const absl::Status pushed = server.Push({.worker = other}, {CountPush(other, 0)}).status();
    const absl::Status pulled = server.Pull(other, 0, {{"user", {kShared}}}).status();
    TANDEM_EXPECT_OK(server.Pull(other, 0, {{"user", {kShared}}}, /*read_only=*/true));
    if (async) {
      TANDEM_EXPECT_OK(pushed);
      TANDEM_EXPECT_OK(pulled);
    } else {
      EXPECT_THAT(pushed, StatusIs(kRefused, AllOf(HasSubstr("has 1 workers"), HasSubstr("rank 5"))));
      EXPECT_THAT(pulled, StatusIs(kRefused, HasSubstr("may only read it (read_only)")));
    }
  }
}

TEST(LateTableTest, MessagesNameTheRankOfTheWorkerThatIsMissing) {
  Driver server;
  v1::TableConfig config = CountTable(2, Sync());
  config.set_first_worker(5);
  TANDEM_ASSERT_OK(server.CreateTable(config));
  TANDEM_ASSERT_OK(server.Push({.worker = 5}, {CountPush(5, 0)}));
  const auto pull = server.StartPull(5, 1, {{"user", {kShared}}}, false, MonotonicNow() + absl::Seconds(1));
  EXPECT_THAT(pull->Wait().status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("by worker 5 waits for the push of step 0 from worker 6")));
  EXPECT_THAT(server.Push({.worker = 5, .step = 0, .sequence = 2}, {CountPush(5, 0)}),
              StatusIs(kRefused, HasSubstr("worker 5: table 'user'")));
}

// In a job whose table turns from async to sync, the pushes of others must not have moved anybody's clock.
TEST(LateTableTest, PushesOfOtherRanksAreNoSteps) {
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(CountTable(1, Async())));
  TANDEM_ASSERT_OK(server.Pull(0, 0, {{"user", {kShared}}}));  // which creates the row
  for (uint64_t step = 0; step < 3; ++step) {
    TANDEM_ASSERT_OK(server.Push({.step = step}, {CountPush(0, step)}));
    TANDEM_ASSERT_OK(server.Push({.worker = 9, .step = 100 + step}, {CountPush(9, step)}));
  }
  EXPECT_EQ(CountOf(server, kShared), 6.0f);
  TANDEM_ASSERT_OK(server.SetUpdateMode("user", Sync()));
  TANDEM_ASSERT_OK(server.Push({.step = 3}, {CountPush(0, 3)}));
  TANDEM_ASSERT_OK(server.Pull(0, 4, {{"user", {kShared}}}));
  EXPECT_THAT(server.Push({.worker = 9, .step = 200}, {CountPush(9, 200)}), StatusIs(kRefused));
}

}  // namespace
}  // namespace tandem::ps::testing
