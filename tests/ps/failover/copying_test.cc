// SPDX-License-Identifier: Apache-2.0
// Followers that are copied while the primary serves, and take over.

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/failover/server_data_path.h"
#include "tests/ps/failover/copies.h"
#include "tests/ps/storage/spill/memory_tier.h"
#include "tests/testing/random_seed.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Mode {
  std::string name;
  v1::UpdateMode mode;
};
std::vector<Mode> Modes() {
  return {{"async", Async()}, {"bounded", Bounded(3)}, {"sync", Sync()}, {"gba", Gba(1 << 30, 4)}};
}

// Loses and repeats some of the messages and answers.
rpc::FaultInjector LossyNetwork(uint64_t seed) {
  return [seed](absl::string_view, int64_t call) {
    switch (CounterRandom(seed, static_cast<uint64_t>(call)).Below(10)) {
      case 0:
        return rpc::Fault{.kind = rpc::Fault::Kind::kFailBefore};
      case 1:
        return rpc::Fault{.kind = rpc::Fault::Kind::kFailAfter};
      case 2:
        return rpc::Fault{.kind = rpc::Fault::Kind::kDuplicate};
      default:
        return rpc::Fault();
    }
  };
}

TEST(Copying, ALearnerThatAttachesUnderLoadEndsWithTheRowsOfThePrimary) {
  const uint64_t seed = tandem::testing::RandomSeed();
  for (const Mode& mode : Modes()) {
    for (const bool lossy : {false, true}) {
      SCOPED_TRACE(absl::StrCat(mode.name, lossy ? ", lossy" : ""));
      ServerCopy follower("f"), primary("p");
      primary.Lead();
      TANDEM_ASSERT_OK(primary->CreateTable(CountTable(3, mode.mode)));
      Load load(3);
      load.Start(primary, 4);
      load.AwaitMore(50);
      primary.Attach(follower, lossy ? LossyNetwork(seed) : nullptr);
      primary.AwaitFollower(follower);
      load.AwaitMore(50);
      load.Stop();
      follower.TakeOver();
      const uint64_t steps = load.Most();
      load.PushUntil(follower, steps);
      TANDEM_ASSERT_OK(follower->Flush("user"));
      ExpectEachPushOnce(follower, 3, steps);
    }
  }
}

TEST(Copying, AFollowerOfAFollowerThatTookOverHasEverythingToo) {
  for (const Mode& mode : Modes()) {
    SCOPED_TRACE(mode.name);
    ServerCopy third("c"), second("b"), first("a");
    first.Lead();
    TANDEM_ASSERT_OK(first->CreateTable(CountTable(2, mode.mode)));
    Load load(2);
    load.PushUntil(first, 20);
    // Worker 1 is behind: in sync mode pushes wait, also across the takeover.
    for (uint64_t step = 20; step < 30; ++step) {
      TANDEM_ASSERT_OK(first->Push({.worker = 0, .step = step}, {CountPush(0, step)}));
    }
    first.Attach(second);
    first.AwaitFollower(second);
    second.TakeOver(2);
    second.Attach(third);
    second.AwaitFollower(third);
    third.TakeOver(3);
    for (uint64_t step = 20; step < 30; ++step) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const v1::PushResponse again,
                                  third->Push({.worker = 0, .step = step}, {CountPush(0, step)}));
      EXPECT_TRUE(again.duplicate());
      TANDEM_ASSERT_OK(third->Push({.worker = 1, .step = step}, {CountPush(1, step)}));
    }
    TANDEM_ASSERT_OK(third->Flush("user"));
    ExpectEachPushOnce(third, 2, 30);
  }
}

TEST(Copying, AFollowerPromotedAfterAnyPrefixOfTheMessagesHasExactlyWhatWasAcknowledged) {
  constexpr uint64_t kSteps = 12;
  for (const Mode& mode : Modes()) {
    SCOPED_TRACE(mode.name);
    for (uint64_t prefix = 0; prefix <= kSteps; ++prefix) {
      SCOPED_TRACE(prefix);
      ServerCopy follower("f"), primary("p");
      primary.Lead();
      TANDEM_ASSERT_OK(primary->CreateTable(CountTable(1, mode.mode)));
      primary.Attach(follower);
      primary.AwaitFollower(follower);
      follower.CutAfter(follower.path().receiver().state().stored_number + prefix);
      std::vector<std::shared_ptr<TestCall>> calls;
      for (uint64_t step = 0; step < kSteps; ++step) {
        calls.push_back(primary->StartPush({.step = step}, {CountPush(0, step)}));
        // Each push that arrives is a message of its own.
        if (step < prefix) {
          TANDEM_ASSERT_OK(calls.back()->Wait());
        }
      }
      follower.TakeOver();
      TANDEM_ASSERT_OK(follower->Flush("user"));
      for (uint64_t step = 0; step < kSteps; ++step) {
        EXPECT_EQ(calls[step]->answered(), step < prefix) << step;
        EXPECT_EQ(ValueOf(follower, PrivateRow(0, step)), step < prefix ? 1.0f : 0.0f) << step;
      }
      // The workers repeat what was not acknowledged.
      for (uint64_t step = 0; step < kSteps; ++step) {
        TANDEM_ASSERT_OK_AND_ASSIGN(const v1::PushResponse again,
                                    follower->Push({.step = step}, {CountPush(0, step)}));
        EXPECT_EQ(again.duplicate(), step < prefix);
      }
      TANDEM_ASSERT_OK(follower->Flush("user"));
      ExpectEachPushOnce(follower, 1, kSteps);
    }
  }
}

TEST(Copying, ASyncTableHasTheSameBitsAfterATakeover) {
  const auto train = [](bool take_over) {
    ServerCopy follower("f"), primary("p");
    primary.Lead();
    v1::TableConfig config = TestTable("user", 4, 3, Sync(), Adam(0.01f));
    TANDEM_CHECK(primary->CreateTable(config).ok());
    ServerCopy* serving = &primary;
    for (uint64_t step = 0; step < 40; ++step) {
      for (uint32_t worker : {1, 0, 2}) {
        if (take_over && step == 13 && worker == 0) primary.Attach(follower);
        if (take_over && step == 27 && worker == 2) {
          primary.AwaitFollower(follower);
          follower.TakeOver();
          serving = &follower;
        }
        PushOf push{.table = "user", .dim = 4};
        for (uint64_t id = 0; id < 20; ++id) {
          if ((id + step + worker) % 3 == 0) continue;
          push.ids.push_back(id);
          for (int i = 0; i < 4; ++i) {
            push.gradients.push_back(0.01f * static_cast<float>((id * 7 + step * 3 + worker) % 11) - 0.05f);
          }
        }
        TANDEM_CHECK((*serving)->Push({.worker = worker, .step = step}, {push}).ok());
      }
    }
    std::vector<uint64_t> ids(20);
    for (uint64_t id = 0; id < 20; ++id) ids[id] = id;
    return (*serving)->Pull(0, 40, {{"user", ids}})->slices[0];
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(Copying, ModesTablesFlushesEpochsRanksAndWrittenRowsReachTheFollower) {
  // The follower attaches before all of it, or after it.
  for (const bool early : {false, true}) {
    SCOPED_TRACE(early);
    ServerCopy follower("f"), primary("p");
    primary.Lead();
    if (early) {
      primary.Attach(follower);
      primary.AwaitFollower(follower);
    }
    EveryChange changes;
    changes.Make(*primary.operator->());
    if (::testing::Test::HasFatalFailure()) return;
    const uint64_t version_before = primary->Table("item").statistics().version();
    if (!early) {
      primary.Attach(follower);
      primary.AwaitFollower(follower);
    }
    follower.TakeOver();
    EXPECT_EQ(follower->Table("item").statistics().version(), version_before);
    changes.ExpectKept(*follower.operator->());
  }
}

TEST(Copying, TablesThatSpillAreCopiedWithTheirRowsOnDisk) {
  MemoryDisk primary_disk, follower_disk;
  ServerCopy follower("f", {.num_buckets = 16, .cold_store = std::make_shared<MemoryStore>(&follower_disk)});
  ServerCopy primary("p", {.num_buckets = 16, .cold_store = std::make_shared<MemoryStore>(&primary_disk)});
  primary.Lead();
  v1::TableConfig config = CountTable(1, Async());
  *config.mutable_eviction() = EvictLru();
  config.set_byte_budget(64 << 10);
  config.set_spill(true);
  TANDEM_ASSERT_OK(primary->CreateTable(config));
  constexpr uint64_t kRows = 20000;
  const auto push_all = [&](ServerCopy& server, uint64_t first_step) {
    for (uint64_t step = 0; step < 20; ++step) {
      PushOf push{.table = "user", .dim = 1};
      for (uint64_t id = step; id < kRows; id += 20) push.ids.push_back(id);
      push.gradients.assign(push.ids.size(), -1.0f);
      TANDEM_ASSERT_OK(server->Push({.step = first_step + step}, {push}));
    }
  };
  push_all(primary, 0);
  ASSERT_GT(primary->Table("user").statistics().spilled_rows(), 0u);
  primary.Attach(follower);
  push_all(primary, 20);
  primary.AwaitFollower(follower);
  follower.TakeOver();
  push_all(follower, 40);
  std::vector<uint64_t> ids(kRows);
  for (uint64_t id = 0; id < kRows; ++id) ids[id] = id;
  TANDEM_ASSERT_OK_AND_ASSIGN(const Rows rows, follower->Pull(0, 0, {{"user", ids}}, /*read_only=*/true));
  for (uint64_t id = 0; id < kRows; ++id) ASSERT_EQ(rows.slices[0][id], 3.0f) << id;
}

TEST(Copying, AFollowerThatCannotApplyAPushSaysSoAndDoesNotTakeOver) {
  MemoryDisk primary_disk, follower_disk;
  ServerCopy follower("f", {.num_buckets = 16, .cold_store = std::make_shared<MemoryStore>(&follower_disk)});
  ServerCopy primary("p", {.num_buckets = 16, .cold_store = std::make_shared<MemoryStore>(&primary_disk)});
  TimedNotification failed;
  follower.path().SetReceiverEvents({.on_failure = [&](const absl::Status&) { failed.Notify(); }});
  primary.Lead();
  v1::TableConfig config = CountTable(1, Async());
  *config.mutable_eviction() = EvictLru();
  config.set_byte_budget(64 << 10);
  config.set_spill(true);
  TANDEM_ASSERT_OK(primary->CreateTable(config));
  PushOf all{.table = "user", .dim = 1};
  for (uint64_t id = 0; id < 20000; ++id) all.ids.push_back(id);
  all.gradients.assign(all.ids.size(), -1.0f);
  TANDEM_ASSERT_OK(primary->Push({.step = 0}, {all}));
  primary.Attach(follower);
  primary.AwaitFollower(follower);
  follower_disk.FailGets(absl::DataLossError("the disk is broken"));
  const auto push = primary->StartPush({.step = 1}, {all});
  ASSERT_TRUE(failed.WaitFor(kTestDeadline));
  EXPECT_THAT(follower.path().receiver().state().status.message(), HasSubstr("the disk is broken"));
  EXPECT_THAT(follower.path().Promote({.term = 2, .id = "f"}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the disk is broken")));
  primary.log().Release("f");
  TANDEM_EXPECT_OK(push->Wait());
}

TEST(Copying, ACallThatWaitedIsNotAnsweredByACopyThatWasDeposedMeanwhile) {
  TempDir directory;
  ServerCopy primary("p");
  primary.Lead();
  TANDEM_ASSERT_OK(primary->CreateTable(CountTable(1, Async())));
  TimedNotification began, go_on;
  primary.path().SetLoadHooks(
      [&] {
        began.Notify();
        go_on.WaitFor(kTestDeadline);
        return absl::UnavailableError("not now");
      },
      nullptr);
  v1::LoadCheckpointRequest load;
  load.set_directory(directory.path());
  const auto loading = primary->Start("LoadCheckpoint", Bytes(load.SerializeAsString()));
  ASSERT_TRUE(began.WaitFor(kTestDeadline));
  v1::SaveCheckpointRequest save;
  save.set_directory(directory.path());
  const auto saving = primary->Start("SaveCheckpoint", Bytes(save.SerializeAsString()));
  primary.path().SetServing(false, "another copy is the primary");
  go_on.Notify();
  EXPECT_THAT(loading->Wait(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not now")));
  EXPECT_THAT(saving->Wait(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("another copy")));
}

TEST(Copying, ABucketThatNeedsManyMessagesIsCopiedWhilePushesGoOn) {
  constexpr uint32_t kDim = 64;
  constexpr uint64_t kRows = 20000;
  ServerCopy follower("f", {.num_buckets = 1}), primary("p", {.num_buckets = 1});
  primary.Lead();
  v1::TableConfig config = TestTable("user", kDim, 1, Async(), Sgd(1.0f));
  *config.mutable_initializer() = Zeros();
  TANDEM_ASSERT_OK(primary->CreateTable(config));
  std::vector<uint64_t> ids(kRows);
  for (uint64_t id = 0; id < kRows; ++id) ids[id] = id;
  const PushOf all{
      .table = "user", .dim = kDim, .ids = ids, .gradients = std::vector<float>(kRows * kDim, -1.0f)};
  constexpr uint64_t kSteps = 6;
  for (uint64_t step = 0; step < kSteps; ++step) {
    if (step == 2) primary.Attach(follower);
    TANDEM_ASSERT_OK(primary->Push({.step = step}, {all}));
  }
  primary.AwaitFollower(follower);
  follower.TakeOver();
  TANDEM_ASSERT_OK_AND_ASSIGN(const Rows rows, follower->Pull(0, 0, {{"user", ids}}, /*read_only=*/true));
  EXPECT_EQ(rows.slices[0], std::vector<float>(kRows * kDim, static_cast<float>(kSteps)));
}

TEST(Copying, AFollowerKnowsHowOftenAnIdWasSeen) {
  ServerCopy follower("f"), primary("p");
  primary.Lead();
  v1::TableConfig config = CountTable(1, Async());
  *config.mutable_admission() = AdmitAfter(3, 1 << 12);
  TANDEM_ASSERT_OK(primary->CreateTable(config));
  uint64_t step = 0;
  const auto push = [&](ServerCopy& server, uint64_t id) {
    TANDEM_ASSERT_OK(
        server->Push({.step = step++}, {{.table = "user", .dim = 1, .ids = {id}, .gradients = {-1}}}));
  };
  push(primary, 5);  // before the copy
  primary.Attach(follower);
  primary.AwaitFollower(follower);
  push(primary, 5);  // as a record
  follower.TakeOver();
  EXPECT_EQ(ValueOf(follower, 5), 0.0f);
  push(follower, 5);
  EXPECT_EQ(ValueOf(follower, 5), 1.0f);
}

TEST(Copying, CopiesToTheSameProcessThatFollowEachOtherArePutOff) {
  EXPECT_EQ(CopyDelay(1), absl::ZeroDuration());
  EXPECT_EQ(CopyDelay(2), absl::Milliseconds(100));
  EXPECT_EQ(CopyDelay(3), absl::Milliseconds(200));
  EXPECT_EQ(CopyDelay(1000), absl::Seconds(2));
}

TEST(Copying, OnlyThePrimaryAnswersCallsThatReadOrChangeRows) {
  ServerCopy follower("f"), primary("p");
  EXPECT_THAT(primary->CreateTable(CountTable(1, Async())),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("copy of shard 0 does not serve")));
  primary.Lead();
  TANDEM_ASSERT_OK(primary->CreateTable(CountTable(1, Async())));
  primary.Attach(follower);
  primary.AwaitFollower(follower);
  follower.path().SetServing(false, "the primary is at 10.0.0.1:7000");
  EXPECT_THAT(follower->Push({}, {CountPush(0, 0)}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the primary is at 10.0.0.1:7000")));
  EXPECT_THAT(follower->Pull(0, 0, {{"user", {1}}}, /*read_only=*/true),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the primary is at 10.0.0.1:7000")));
  follower.ApplyReceived();
  EXPECT_EQ(follower->Table("user").config().name(), "user");
}

TEST(Copying, ACopyThatIsNotWholeCannotTakeOver) {
  ServerCopy follower("f"), primary("p");
  primary.Lead();
  TANDEM_ASSERT_OK(primary->CreateTable(CountTable(1, Async())));
  follower.CutAfter(3);
  primary.Attach(follower);
  const absl::Time deadline = MonotonicNow() + kTestDeadline;
  while (follower.path().receiver().state().stored_number < 3 && MonotonicNow() < deadline) {
    std::this_thread::yield();
  }
  follower.path().receiver().Close("it takes over");
  follower.ApplyReceived();
  EXPECT_THAT(follower.path().Promote({.term = 2, .id = "f"}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not whole")));
}

TEST(Copying, ACopyForAnotherNumberOfServersIsRefusedWithBothSidesNamed) {
  ServerCopy follower("f", {.num_servers = 3}), primary("p", {.num_servers = 2});
  primary.Lead();
  TANDEM_ASSERT_OK(primary->CreateTable(CountTable(1, Async())));
  primary.Attach(follower);
  ASSERT_TRUE(primary.events().Await("gone", "f"));
  EXPECT_THAT(primary.events().gone(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                AllOf(HasSubstr("server 0 of 2 with 256 buckets"),
                                                      HasSubstr("this is server 0 of 3 with 256"))));
}

TEST(Copying, AFollowerThatDropsItsTablesIsCopiedAnew) {
  ServerCopy follower("c"), second("b"), first("a");
  for (ServerCopy* primary : {&first, &second}) {
    primary->Lead();
    TANDEM_ASSERT_OK((*primary)->CreateTable(CountTable(1, Async())));
  }
  TANDEM_ASSERT_OK(first->CreateTable(CountTable(1, Async(), "item")));
  Load one(1), other(1);
  one.PushUntil(first, 10);
  other.PushUntil(second, 20);
  first.Attach(follower);
  first.AwaitFollower(follower);
  follower.path().receiver().Drop("another copy became primary");
  follower.path().Clear();
  second.Attach(follower);
  second.AwaitFollower(follower);
  follower.TakeOver();
  ExpectEachPushOnce(follower, 1, 20);
  EXPECT_EQ(follower->Table("item").config().name(), "");
}

TEST(Copying, LoadCheckpointRemovesFollowersFirstAndTheyCopyWhatItHasLoaded) {
  TempDir directory;
  ServerCopy before("f"), after("g"), primary("p");
  primary.Lead();
  TANDEM_ASSERT_OK(primary->CreateTable(CountTable(1, Async())));
  Load load(1);
  load.PushUntil(primary, 10);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, BeginCheckpoint(directory.path(), 1));
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::SaveCheckpointResponse saved, primary->Save(unfinished));
  const std::vector<v1::SavedFile> written(saved.written().begin(), saved.written().end());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string path, CommitCheckpoint(unfinished, {}, written));
  load.PushUntil(primary, 20);
  primary.Attach(before);
  primary.AwaitFollower(before);
  std::vector<std::string> order;
  primary.path().SetLoadHooks(
      [&] {
        order.push_back("before");
        primary.log().Confirm(0);
        primary.log().Release("f");
        primary.log().DropLink("f");
        return absl::OkStatus();
      },
      [&] { order.push_back("after"); });
  TANDEM_ASSERT_OK(primary->Load(path));
  EXPECT_THAT(order, ::testing::ElementsAre("before", "after"));
  // An error of the hook is that of the call, and nothing is loaded.
  primary.path().SetLoadHooks([] { return absl::UnavailableError("the board is away"); }, nullptr);
  EXPECT_THAT(primary->Load("/nowhere"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the board")));
  primary.Attach(after);
  primary.AwaitFollower(after);
  after.TakeOver();
  for (uint64_t step = 0; step < 20; ++step) {
    EXPECT_EQ(ValueOf(after, PrivateRow(0, step)), step < 10 ? 1.0f : 0.0f) << step;
  }
}

// Three copies, of which the first dies while `second_lacks` messages are on their way to the second one, and
// `third_lacks` to the third.
struct Three {
  Three(const v1::UpdateMode& mode, uint64_t second_lacks, uint64_t third_lacks) {
    first.Lead();
    TANDEM_EXPECT_OK(first->CreateTable(CountTable(1, mode)));
    for (ServerCopy* follower : {&second, &third}) {
      first.Attach(*follower);
      first.AwaitFollower(*follower);
    }
    for (uint64_t step = 0; step < kAcknowledged; ++step) {
      TANDEM_EXPECT_OK(first->Push({.step = step}, {CountPush(0, step)}));
    }
    const auto state = [](ServerCopy& copy) { return copy.path().receiver().state(); };
    // Each push is a message of its own, since it waits for the one before to arrive somewhere.
    second.CutAfter(state(second).stored_number + kOnTheWay - second_lacks);
    third.CutAfter(state(third).stored_number + kOnTheWay - third_lacks);
    const uint64_t arrive = kOnTheWay - std::min(second_lacks, third_lacks);
    for (uint64_t i = 0; i < kOnTheWay; ++i) {
      calls.push_back(first->StartPush({.step = kAcknowledged + i}, {CountPush(0, kAcknowledged + i)}));
      const absl::Time deadline = MonotonicNow() + kTestDeadline;
      while (std::max(state(second).stored_position, state(third).stored_position) <
             kBefore + std::min(i + 1, arrive)) {
        TANDEM_CHECK(MonotonicNow() < deadline);
        std::this_thread::yield();
      }
    }
    const absl::Time deadline = MonotonicNow() + kTestDeadline;
    const auto arrived = [&](ServerCopy& copy, uint64_t lacks) {
      return state(copy).stored_position == kBefore + kOnTheWay - lacks;
    };
    while (!arrived(second, second_lacks) || !arrived(third, third_lacks)) {
      TANDEM_CHECK(MonotonicNow() < deadline);
      std::this_thread::yield();
    }
    third.path().receiver().Close("its primary is dead");
    third.ApplyReceived();  // a copy continues only if it was whole before
    second.TakeOver(2);
    second.CutAfter(~uint64_t{0});
    third.CutAfter(~uint64_t{0});
  }
  // The workers repeat what was not acknowledged, and push more.
  void PushOn(ServerCopy& to, uint64_t steps) {
    for (uint64_t step = kAcknowledged; step < steps; ++step) {
      TANDEM_EXPECT_OK(to->Push({.step = step}, {CountPush(0, step)}));
    }
  }

  static constexpr uint64_t kAcknowledged = 10;
  static constexpr uint64_t kOnTheWay = 4;
  static constexpr uint64_t kBefore = kAcknowledged + 1;  // records: the first one creates the table
  ServerCopy third{"c"}, second{"b"}, first{"a"};
  std::vector<std::shared_ptr<TestCall>> calls;
};

TEST(Copying, AFollowerThatIsNotAheadOfTheNextPrimaryContinuesWithoutACopy) {
  for (const Mode& mode : Modes()) {
    for (const uint64_t third_lacks : {1, 3}) {
      SCOPED_TRACE(absl::StrCat(mode.name, ", lacks ", third_lacks));
      Three copies(mode.mode, 1, third_lacks);
      copies.PushOn(copies.second, 20);
      copies.second.AttachWithWhatItHas(copies.third);
      copies.second.AwaitFollower(copies.third);
      // A copy would have begun with a state.
      EXPECT_EQ(copies.second.path().longest_copy_pause_s(), 0);
      EXPECT_EQ(copies.third.path().receiver().state().term, 2u);
      copies.PushOn(copies.second, 25);
      copies.third.TakeOver(3);
      copies.PushOn(copies.third, 30);
      TANDEM_ASSERT_OK(copies.third->Flush("user"));
      ExpectEachPushOnce(copies.third, 1, 30);
    }
  }
}

TEST(Copying, AFollowerThatIsAheadOfTheNextPrimaryIsCopiedAnew) {
  for (const Mode& mode : Modes()) {
    SCOPED_TRACE(mode.name);
    Three copies(mode.mode, 3, 1);
    // Other pushes have the positions that it had.
    copies.PushOn(copies.second, 20);
    copies.second.AttachWithWhatItHas(copies.third);
    copies.second.AwaitFollower(copies.third);
    EXPECT_GT(copies.second.path().longest_copy_pause_s(), 0);
    copies.third.TakeOver(3);
    copies.PushOn(copies.third, 30);
    TANDEM_ASSERT_OK(copies.third->Flush("user"));
    ExpectEachPushOnce(copies.third, 1, 30);
  }
}

TEST(Copying, AFollowerOfBeforeALoadIsCopiedAnew) {
  TempDir dir;
  Three copies(Async(), 1, 1);
  // The third copy has the position of the new primary, which loads other tables.
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, BeginCheckpoint(dir.path(), 1));
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::SaveCheckpointResponse saved, copies.second->Save(unfinished));
  const std::vector<v1::SavedFile> written(saved.written().begin(), saved.written().end());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string path, CommitCheckpoint(unfinished, {}, written));
  TANDEM_ASSERT_OK(copies.second->Load(path));
  copies.second.AttachWithWhatItHas(copies.third);
  copies.second.AwaitFollower(copies.third);
  EXPECT_GT(copies.second.path().longest_copy_pause_s(), 0);
}

}  // namespace
}  // namespace tandem::ps::testing
