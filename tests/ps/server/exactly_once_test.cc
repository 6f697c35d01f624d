// SPDX-License-Identifier: Apache-2.0
// Pushes that arrive twice, late, in the wrong order, or from a process that should have ended.

#include <atomic>
#include <thread>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/server/push_fence.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kNew = PushFence::Verdict::kNew;
constexpr auto kDuplicate = PushFence::Verdict::kDuplicate;

v1::TableConfig CountTable(uint32_t workers, v1::UpdateMode mode) {
  v1::TableConfig config = TestTable("user", 1, workers, mode, Sgd(1.0f));
  *config.mutable_initializer() = Zeros();
  return config;
}
const PushOf kOne = {.table = "user", .dim = 1, .ids = {42}, .gradients = {1.0f}};

TEST(Fence, TakesEachSequenceOnceInAnyOrder) {
  PushFence fences;
  std::set<uint64_t> model;
  CounterRandom random(1, 2);
  uint64_t base = 1;
  for (int i = 0; i < 5000; ++i) {
    const uint64_t sequence = base + random.Below(32);
    const absl::StatusOr<PushFence::Verdict> verdict = fences.Check(3, 1, sequence);
    TANDEM_ASSERT_OK(verdict);
    ASSERT_EQ(*verdict, model.insert(sequence).second ? kNew : kDuplicate) << sequence;
    if (*verdict == kNew) fences.Commit(3, 1, sequence);
    while (model.count(base) > 0) ++base;
  }
  EXPECT_GT(base, 1000);
}

TEST(Fence, AStartedEpochIsAboveAllEarlierOnesAndRefusesTheirPushes) {
  PushFence fences;
  EXPECT_EQ(*fences.StartEpoch(0, 0), 1u);
  EXPECT_EQ(*fences.StartEpoch(0, 0), 2u);
  EXPECT_EQ(*fences.StartEpoch(0, 9), 9u);
  EXPECT_EQ(*fences.StartEpoch(1, 0), 1u);
  EXPECT_EQ(*fences.Check(0, 9, 1), kNew);
  fences.Commit(0, 9, 1);
  EXPECT_EQ(*fences.StartEpoch(0, 3), 10u);
  EXPECT_THAT(fences.Check(0, 9, 2), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("epoch 10")));
  EXPECT_EQ(*fences.Check(0, 10, 1), kNew);
  // Older versions used the time in microseconds.
  v1::WorkerFence saved;
  saved.set_epoch(1760000000000000);
  saved.set_sequence(77);
  uint64_t next = 1760000000000001;
  for (const bool same_servers : {true, false}) {
    if (same_servers) {
      fences.Restore({saved});
    } else {
      fences.RestoreEpochsOnly({saved});
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t epoch, fences.StartEpoch(0, 0));
    EXPECT_EQ(epoch, next++);
    EXPECT_EQ(*fences.Check(0, epoch, 1), kNew);
  }
  fences.Commit(0, ~uint64_t{0}, 1);
  EXPECT_THAT(fences.StartEpoch(0, 0), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(Fence, AnEpochFromBeforeARestoreIsNeverStartedAgain) {
  for (const bool same_servers : {true, false}) {
    PushFence fences;
    fences.Commit(0, 3, 1);
    const std::vector<v1::WorkerFence> saved = fences.Save();
    EXPECT_EQ(*fences.StartEpoch(0, 0), 4u);  // its process hangs
    EXPECT_EQ(*fences.StartEpoch(0, 0), 5u);  // another one takes over and loads the checkpoint
    same_servers ? fences.Restore(saved) : fences.RestoreEpochsOnly(saved);
    EXPECT_THAT(fences.Check(0, 3, 2), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("epoch 5")));
    EXPECT_THAT(fences.Check(0, 4, 1), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("epoch 5")));
    EXPECT_EQ(*fences.Check(0, 5, 1), kNew);
    EXPECT_EQ(*fences.StartEpoch(0, 0), 6u);
    EXPECT_THAT(fences.Check(0, 4, 1), StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_EQ(*fences.Check(0, 6, 1), kNew);
    // A worker that the checkpoint does not know.
    fences.Commit(1, 8, 1);
    same_servers ? fences.Restore(saved) : fences.RestoreEpochsOnly(saved);
    EXPECT_THAT(fences.Check(1, 7, 1), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("epoch 8")));
    EXPECT_EQ(*fences.StartEpoch(1, 0), 9u);
    EXPECT_EQ(*fences.StartEpoch(0, 0), 7u);
  }
}

TEST(Fence, ARepeatedStartOfAnEpochStartsNoOther) {
  PushFence fences;
  EXPECT_EQ(*fences.StartEpoch(0, 0, /*token=*/77), 1u);
  EXPECT_EQ(*fences.StartEpoch(0, 0, 77), 1u);
  EXPECT_EQ(*fences.Check(0, 1, 1), kNew);
  fences.Commit(0, 1, 1);
  EXPECT_EQ(*fences.StartEpoch(0, 0, 77), 1u);
  EXPECT_EQ(*fences.Check(0, 1, 1), kDuplicate);  // the epoch's pushes are not forgotten
  EXPECT_EQ(*fences.StartEpoch(1, 0, 77), 1u);    // another worker
  EXPECT_EQ(*fences.StartEpoch(0, 5, 78), 5u);
  EXPECT_EQ(*fences.StartEpoch(0, 0, 77), 1u);  // a late one
  EXPECT_EQ(*fences.Check(0, 5, 1), kNew);
  for (uint64_t token = 1; token <= PushFence::kKnownTokens; ++token) *fences.StartEpoch(0, 0, token);
  EXPECT_EQ(*fences.StartEpoch(0, 0, 0), 6u + PushFence::kKnownTokens);
}

TEST(Fence, RefusesAnOlderEpochAndStartsAfreshWithANewer) {
  PushFence fences;
  fences.Commit(0, 5, 1);
  EXPECT_THAT(fences.Check(0, 4, 2),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("worker 0"), HasSubstr("epoch 4"), HasSubstr("epoch 5"))));
  EXPECT_EQ(*fences.Check(0, 6, 1), kNew);
  EXPECT_EQ(*fences.Check(1, 4, 1), kNew);
  fences.Commit(0, 6, 1);
  EXPECT_EQ(*fences.Check(0, 6, 1), kDuplicate);
  EXPECT_THAT(fences.Check(0, 5, 2), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(fences.Check(0, 6, 0), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Fence, TellsAWorkerThatRestartedUnderItsOldEpochInsteadOfDroppingItsPushes) {
  PushFence fences;
  for (uint64_t sequence = 1; sequence <= 1000; ++sequence) fences.Commit(0, 1, sequence);
  EXPECT_EQ(*fences.Check(0, 1, 1000), kDuplicate);
  EXPECT_EQ(*fences.Check(0, 1, 1000 - PushFence::kWindow + 1), kDuplicate);
  EXPECT_THAT(fences.Check(0, 1, 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("epoch above 1")));
}

TEST(Fence, ForgetsGapsThatWereNeverFilled) {
  PushFence fences;
  for (uint64_t sequence = 2; sequence <= 2000; sequence += 2) fences.Commit(0, 1, sequence);
  EXPECT_EQ(*fences.Check(0, 1, 1999), kNew);
  EXPECT_THAT(fences.Check(0, 1, 3), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_LT(fences.Save()[0].above_size(), PushFence::kWindow);
}

TEST(Fence, SurvivesSavingAndRestoring) {
  PushFence before;
  for (uint64_t sequence : {1, 2, 3, 6}) before.Commit(2, 7, sequence);
  PushFence after;
  after.Commit(9, 9, 9);
  after.Restore(before.Save());
  for (uint64_t sequence : {2, 3, 6}) EXPECT_EQ(*after.Check(2, 7, sequence), kDuplicate) << sequence;
  for (uint64_t sequence : {4, 5, 7}) EXPECT_EQ(*after.Check(2, 7, sequence), kNew) << sequence;
  EXPECT_THAT(after.Check(2, 6, 9), StatusIs(absl::StatusCode::kFailedPrecondition));
  // The checkpoint does not know worker 9. Its process may go on; an older one that hung may not.
  EXPECT_EQ(*after.Check(9, 9, 10), kNew);
  EXPECT_THAT(after.Check(9, 8, 1), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("epoch 9")));
  EXPECT_EQ(*after.Check(8, 1, 1), kNew);  // a worker of which nothing was heard
  // A new process begins with sequence 1. Under the old epoch the server would mistake its pushes for
  // retries.
  EXPECT_THAT(after.Check(2, 7, 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("epoch above 7")));
}

TEST(Fence, OnOtherServersOnlyTheEpochCounts) {
  PushFence before;
  before.Commit(2, 7, 1);
  PushFence after;
  after.RestoreEpochsOnly(before.Save());
  EXPECT_THAT(after.Check(2, 7, 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("epoch above 7")));
  EXPECT_EQ(*after.Check(2, 8, 1), kNew);
}

TEST(ExactlyOnce, ADuplicateIsAcknowledgedNotApplied) {
  for (const v1::UpdateMode& mode : {Sync(), Bounded(1), Async()}) {
    Driver driver;
    TANDEM_ASSERT_OK(driver.CreateTable(CountTable(1, mode)));
    TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
    for (int attempt = 0; attempt < 3; ++attempt) {
      const absl::StatusOr<v1::PushResponse> pushed = driver.Push({.step = 0}, {kOne});
      TANDEM_ASSERT_OK(pushed);
      EXPECT_EQ(pushed->duplicate(), attempt > 0);
    }
    EXPECT_EQ(driver.Pull(0, 1, {{"user", {42}}})->slices[0][0], -1.0f);
    EXPECT_EQ(driver.Table("user").statistics().version(), 1);
  }
}

TEST(ExactlyOnce, ARefusedPushMayBeMadeAgainUnderItsSequence) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(CountTable(1, Sync())));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
  EXPECT_FALSE(driver.Push({.step = 0}, {kOne, {"nobody", 1, {}, {}}}).ok());
  const absl::StatusOr<v1::PushResponse> pushed = driver.Push({.step = 0}, {kOne});
  TANDEM_ASSERT_OK(pushed);
  EXPECT_FALSE(pushed->duplicate());
}

TEST(ExactlyOnce, APushOfSeveralTablesIsTakenWholeOrNotAtAll) {
  Driver driver;
  v1::TableConfig item = CountTable(1, Sync());
  item.set_name("item");
  TANDEM_ASSERT_OK(driver.CreateTable(CountTable(1, Sync())));
  TANDEM_ASSERT_OK(driver.CreateTable(item));
  TANDEM_ASSERT_OK(driver.Push({.step = 0, .sequence = 1}, {{"item", 1, {}, {}}}));
  // The push is right for 'user', but repeats a step of 'item'.
  EXPECT_FALSE(driver.Push({.step = 0, .sequence = 2}, {kOne, {"item", 1, {}, {}}}).ok());
  EXPECT_EQ(driver.Table("user").statistics().version(), 0);
  TANDEM_EXPECT_OK(driver.Push({.step = 0, .sequence = 2}, {kOne}));
}

TEST(ExactlyOnce, RetriesFromManyThreadsInAnyOrderCountOnce) {
  constexpr uint64_t kPushes = 200;
  for (const v1::UpdateMode& mode : {Sync(), Bounded(1), Async()}) {
    Driver driver;
    TANDEM_ASSERT_OK(driver.CreateTable(CountTable(1, mode)));
    TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
    std::atomic<uint64_t> taken{0};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        // Each thread sends every push, shuffled within windows of 8.
        for (uint64_t i = 0; i < kPushes; ++i) {
          const uint64_t step = i / 8 * 8 + (i % 8 * 3 + t) % 8;
          const absl::StatusOr<v1::PushResponse> pushed = driver.Push({.step = step}, {kOne});
          TANDEM_CHECK_MSG(pushed.ok(), pushed.status().ToString());
          if (!pushed->duplicate()) ++taken;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(taken, kPushes);
    EXPECT_EQ(driver.Pull(0, kPushes, {{"user", {42}}})->slices[0][0], -float{kPushes});
  }
}

}  // namespace
}  // namespace tandem::ps::testing
