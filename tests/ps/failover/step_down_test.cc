// SPDX-License-Identifier: Apache-2.0
// Primaries that hand over and follow their successors with the tables that they have.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/failover/copies.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::HasSubstr;

const auto kUnavailable = StatusIs(absl::StatusCode::kUnavailable);

struct UpdateRule {
  std::string name;
  v1::UpdateMode mode;
};
std::vector<UpdateRule> UpdateRules() {
  return {{"async", Async()}, {"bounded", Bounded(3)}, {"sync", Sync()}, {"gba", Gba(1 << 30, 4)}};
}

// Makes `follower` the primary of `term`, and its primary its follower, which keeps its tables.
void HandOver(ServerCopy& primary, ServerCopy& follower, uint64_t term) {
  primary.path().SetServing(false, "it hands over");
  TimedNotification stored;
  primary.log().WhenDurable([&](const absl::Status& durable) {
    TANDEM_EXPECT_OK(durable);
    stored.Notify();
  });
  ASSERT_TRUE(stored.WaitFor(kTestDeadline));
  follower.TakeOver(term);
  primary.StepDown();
  follower.AttachWithWhatItHas(primary);
  follower.AwaitFollower(primary);
}

TEST(StepDown, TwoCopiesHandOverToEachOtherAgainAndAgainWithoutACopy) {
  constexpr uint64_t kHandOvers = 10, kSteps = 7;
  for (const UpdateRule& rule : UpdateRules()) {
    SCOPED_TRACE(rule.name);
    ServerCopy second("b"), first("a");
    first.Lead(1);
    TANDEM_ASSERT_OK(first->CreateTable(CountTable(2, rule.mode)));
    first.Attach(second);
    first.AwaitFollower(second);
    const double pause = first.path().longest_copy_pause_s();
    uint64_t step = 0;
    const auto push = [&](ServerCopy& to, uint32_t worker, uint64_t at) {
      TANDEM_EXPECT_OK(to->Push({.worker = worker, .step = at}, {CountPush(worker, at)}));
    };
    ServerCopy *primary = &first, *follower = &second;
    for (uint64_t h = 0; h < kHandOvers; ++h) {
      for (const uint64_t until = step + kSteps; step < until; ++step) {
        push(*primary, 0, step);
        push(*primary, 1, step);
      }
      // This push waits in the tables of both copies for the one of the other worker, in sync mode.
      push(*primary, 0, step);
      HandOver(*primary, *follower, h + 2);
      std::swap(primary, follower);
      EXPECT_TRUE(primary->log().links()[0].continued);
      push(*primary, 1, step);
      ++step;
    }
    EXPECT_EQ(first.path().longest_copy_pause_s(), pause);
    EXPECT_EQ(second.path().longest_copy_pause_s(), 0);
    TANDEM_ASSERT_OK((*primary)->Flush("user"));
    ExpectEachPushOnce(*primary, 2, step);
    // The follower has the same.
    HandOver(*primary, *follower, kHandOvers + 2);
    ExpectEachPushOnce(*follower, 2, step);
    // Followers outlive their primaries.
    HandOver(*follower, *primary, kHandOvers + 3);
  }
}

// Returns the generation of the table "user", which clients compare.
uint64_t GenerationOf(ServerCopy& server) {
  const absl::StatusOr<Bytes> answer =
      server->StartPull(0, 0, {{"user", {kShared}}}, /*read_only=*/true)->Wait();
  v1::PullResponse header;
  Bytes payload;
  TANDEM_CHECK(answer.ok() && rpc::DecodeBulk(*answer, &header, &payload).ok());
  return header.slices(0).generation();
}

TEST(StepDown, TheTablesOfAnEarlierPrimaryAreOlderForClientsThanThoseOfItsSuccessors) {
  ServerCopy second("b"), first("a");
  first.Lead(1);
  TANDEM_ASSERT_OK(first->CreateTable(CountTable(1, Async())));
  first.Attach(second);
  first.AwaitFollower(second);
  uint64_t generation = GenerationOf(first);
  ServerCopy *primary = &first, *follower = &second;
  for (uint64_t term = 2; term < 6; ++term) {
    HandOver(*primary, *follower, term);
    std::swap(primary, follower);
    const uint64_t next = GenerationOf(*primary);
    EXPECT_GT(next, generation);
    generation = next;
  }
}

TEST(StepDown, EveryKindOfChangeIsKeptWhenThePrimaryComesBack) {
  ServerCopy second("b"), first("a");
  first.Lead(1);
  first.Attach(second);
  first.AwaitFollower(second);
  EveryChange change;
  change.Make(*first.operator->());
  HandOver(first, second, 2);
  HandOver(second, first, 3);
  change.ExpectKept(*first.operator->());
}

TEST(StepDown, CallsThatWaitAreRefusedAndCountOnceAtTheNextPrimary) {
  ServerCopy second("b"), first("a");
  first.Lead(1);
  TANDEM_ASSERT_OK(first->CreateTable(CountTable(2, Sync())));
  first.Attach(second);
  first.AwaitFollower(second);
  TANDEM_ASSERT_OK(first->Push({.worker = 0, .step = 0}, {CountPush(0, 0)}));
  const auto pull = first->StartPull(0, 1, {{"user", {kShared}}});  // waits for worker 1
  EXPECT_EQ(first->server().parked_calls(), 1u);
  v1::GetChangesRequest changes;
  changes.add_tables("user");
  TANDEM_ASSERT_OK_AND_ASSIGN(const Bytes begun, first->StartChanges(changes)->Wait());
  v1::GetChangesResponse all;
  ASSERT_TRUE(all.ParseFromString(begun.Flatten()));
  changes.set_position(all.position());
  changes.set_wait_ms(60'000);
  const auto subscribed = first->StartChanges(changes);
  // The follower stores nothing more, so these are not acknowledged.
  second.CutOff();
  const auto push = first->StartPush({.worker = 1, .step = 0}, {CountPush(1, 0)});
  v1::StartPushEpochRequest epoch;
  epoch.set_worker(1);
  epoch.set_token(5);
  const auto start = first->Start("StartPushEpoch", Bytes(epoch.SerializeAsString()));
  second.TakeOver(2);
  first.StepDown();
  for (const auto& call : {push, start, subscribed}) EXPECT_THAT(call->Wait(), kUnavailable);
  // The push has released this pull, or it was refused.
  const absl::StatusOr<Bytes> pulled = pull->Wait();
  EXPECT_TRUE(pulled.ok() || absl::IsUnavailable(pulled.status())) << pulled.status();
  EXPECT_EQ(first->server().parked_calls(), 0u);
  TANDEM_EXPECT_OK(second->Push({.worker = 1, .step = 0}, {CountPush(1, 0)}));
  EXPECT_EQ(ValueOf(second, kShared), 2.0f);
}

TEST(StepDown, APullThatWaitsForAnotherWorkerIsRefused) {
  ServerCopy second("b"), first("a");
  first.Lead(1);
  TANDEM_ASSERT_OK(first->CreateTable(CountTable(2, Sync())));
  first.Attach(second);
  first.AwaitFollower(second);
  const auto pull = first->StartPull(0, 1, {{"user", {kShared}}});
  HandOver(first, second, 2);
  EXPECT_THAT(pull->Wait(), kUnavailable);
  // When it is the primary again, pulls wait as they did.
  HandOver(second, first, 3);
  const auto again = first->StartPull(0, 1, {{"user", {kShared}}});
  EXPECT_FALSE(again->answered());
  TANDEM_ASSERT_OK(first->Push({.worker = 0, .step = 0}, {CountPush(0, 0)}));
  TANDEM_ASSERT_OK(first->Push({.worker = 1, .step = 0}, {CountPush(1, 0)}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Rows rows, ParseRows(again->Wait()));
  EXPECT_EQ(rows.slices[0][0], 2.0f);
}

TEST(StepDown, AnEarlierPrimaryThatIsAheadOfItsSuccessorIsCopiedAnew) {
  for (const UpdateRule& rule : UpdateRules()) {
    SCOPED_TRACE(rule.name);
    ServerCopy second("b"), first("a");
    first.Lead(1);
    TANDEM_ASSERT_OK(first->CreateTable(CountTable(1, rule.mode)));
    first.Attach(second);
    first.AwaitFollower(second);
    TANDEM_ASSERT_OK(first->Push({.step = 0}, {CountPush(0, 0)}));
    second.CutOff();
    const auto lost = first->StartPush({.step = 1}, {CountPush(0, 1)});
    second.TakeOver(2);
    first.StepDown();
    EXPECT_THAT(lost->Wait(), kUnavailable);
    second.Reconnect();
    second.AttachWithWhatItHas(first);
    second.AwaitFollower(first);
    EXPECT_GT(second.path().longest_copy_pause_s(), 0);
    EXPECT_FALSE(second.log().links()[0].continued);
    TANDEM_ASSERT_OK(second->Push({.step = 1}, {CountPush(0, 1)}));
    HandOver(second, first, 3);
    TANDEM_ASSERT_OK(first->Flush("user"));
    ExpectEachPushOnce(first, 1, 2);
  }
}

TEST(StepDown, ACheckpointThatIsBeingWrittenGivesUpAndTheNextTermSavesOthers) {
  TempDir directory;
  std::atomic<bool> blocks{true};
  absl::Notification writes, go_on;
  ServerCopy second("b");
  ServerCopy first("a", {.before_checkpoint_row = [&] {
                     if (!blocks.exchange(false)) return;
                     writes.Notify();
                     go_on.WaitForNotification();
                   }});
  first.Lead(1);
  TANDEM_ASSERT_OK(first->CreateTable(CountTable(1, Async())));
  for (uint64_t step = 0; step < 100; ++step) {
    TANDEM_ASSERT_OK(first->Push({.step = step}, {CountPush(0, step)}));
  }
  first.Attach(second);
  first.AwaitFollower(second);
  TANDEM_ASSERT_OK(first->BeginSave(directory.path()));
  v1::SaveCheckpointRequest save;
  save.set_directory(directory.path());
  save.set_begun(true);
  const auto saving = first->Start("SaveCheckpoint", Bytes(save.SerializeAsString()));
  writes.WaitForNotification();
  // The tables of the earlier primary follow while the checkpoint is still being written.
  HandOver(first, second, 2);
  TANDEM_ASSERT_OK(second->Push({.step = 100}, {CountPush(0, 100)}));
  go_on.Notify();
  EXPECT_THAT(saving->Wait(), kUnavailable);
  HandOver(second, first, 3);
  TANDEM_ASSERT_OK(first->BeginSave(directory.path()));
  TANDEM_ASSERT_OK(first->FinishSave(directory.path()));
  ExpectEachPushOnce(first, 1, 101);
}

TEST(StepDown, ACopyThatServesOrIsNoPrimaryDoesNotStepDown) {
  ServerCopy second("b"), first("a");
  first.Lead(1);
  for (ServerCopy* const copy : {&first, &second}) {
    TimedNotification done;
    copy->path().StepDown([&](const absl::Status& status) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition));
      done.Notify();
    });
    ASSERT_TRUE(done.WaitFor(kTestDeadline));
  }
  TANDEM_EXPECT_OK(first->CreateTable(CountTable(1, Async())));
}

}  // namespace
}  // namespace tandem::ps::testing
