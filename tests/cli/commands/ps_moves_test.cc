// SPDX-License-Identifier: Apache-2.0
// tandem ps move, drain and balance: shards of real processes move while workers push.

#include <signal.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/shard_map.h"
#include "ps/table.h"
#include "tests/cli/commands/exactly_once.h"
#include "tests/cli/commands/shard_copies.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::kTestTimeout;
using ::testing::Not;
using testing::TandemProcess;

constexpr uint64_t kSomePushes = 200;

std::vector<std::string> PsCommand(const ShardCopies& copies, std::vector<std::string> args) {
  args.insert(args.begin(), "ps");
  args.insert(args.end(), {"--store", copies.store_address()});
  return args;
}

absl::StatusOr<std::unique_ptr<ExactlyOnce>> StartPushes(ShardCopies& copies, uint32_t shards) {
  return ExactlyOnce::Start(
      {.servers = shards, .workers = 2, .dim = 8, .mode = ps::Async(), .connect = [&copies](uint32_t worker) {
         return copies.Connect(worker, 2 * kTestTimeout);
       }});
}

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

// Issue 29, item 2.4: the service was open to everyone who reached a port.
TEST(PsMembersOnly, AStrangerCannotEndAttachToOrTakeOverCopies) {
  ShardCopies copies(1, 1);
  const int primary = copies.AwaitRedundant(0);
  ASSERT_GE(primary, 0);
  v1::ReplicaStatus before;
  for (uint32_t copy = 0; copy < 2; ++copy) {
    TANDEM_ASSERT_OK_AND_ASSIGN(before, copies.Status(0, copy));
    for (const rpc::Caller& stranger : {rpc::Caller{.token = "0123456789abcdef"},
                                        rpc::Caller{.member = "ps/1", .token = "0123456789abcdef"}}) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const auto channel,
                                  rpc::ConnectGrpc(copies.address(0, copy), {.caller = stranger}));
      v1::AttachRequest attach;
      attach.set_num_servers(1);
      attach.set_num_buckets(ps::kDefaultBuckets);
      attach.mutable_me()->set_id("stranger");
      attach.mutable_me()->set_address("127.0.0.1:1");
      attach.set_term(before.placement().term());
      attach.set_primary(before.placement().primary().id());
      v1::TakeOverRequest take_over;
      *take_over.mutable_placement() = before.placement();
      v1::DetachRequest detach;
      detach.set_me(before.placement().in_sync(0).id());
      const std::vector<std::pair<std::string, std::string>> calls = {
          {"Attach", attach.SerializeAsString()},
          {"Append", ""},
          {"Watch", ""},
          {"HandOver", ""},
          {"TakeOver", take_over.SerializeAsString()},
          {"Leave", ""},
          {"Detach", detach.SerializeAsString()}};
      for (const auto& [method, request] : calls) {
        EXPECT_THAT(
            channel->Call("/tandem.v1.Failover/" + method, Bytes(request), {.timeout = kTestTimeout})
                .status(),
            testing::StatusIs(absl::StatusCode::kPermissionDenied,
                              AllOf(HasSubstr("tandem.v1.Failover/" + method), HasSubstr("tandem key show"),
                                    Not(HasSubstr("0123456789abcdef")))));
      }
      v1::ReplicaStatus seen;
      TANDEM_EXPECT_OK(rpc::CallProto(*channel, "/tandem.v1.Failover/GetPlacement", v1::GetPlacementRequest(),
                                      &seen, {.timeout = kTestTimeout}));
    }
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ReplicaStatus after,
                              copies.Status(0, static_cast<uint32_t>(primary)));
  EXPECT_EQ(after.placement().term(), before.placement().term());
  EXPECT_EQ(after.placement().version(), before.placement().version());
  // The commands have the same key as the servers.
  const Finished moved = testing::RunTandem(PsCommand(
      copies, {"move", "--shard", "0", "--to", copies.address(0, static_cast<uint32_t>(1 - primary))}));
  EXPECT_EQ(moved.exit_code, 0) << moved.err;
}

TEST(PsBalance, SpreadsThePrimariesOverTheHostsWhileWorkersPush) {
  constexpr uint32_t kShardsHere = 3;
  // Copy 0 of each shard is on the first host, copy 1 on the second or third.
  ShardCopies copies(kShardsHere, 1, [](uint32_t shard, uint32_t copy) {
    return absl::StrCat("127.0.0.", copy == 0 ? 1 : 2 + shard % 2);
  });
  const auto primaries = [&copies] {
    std::map<std::string, int> hosts;
    for (uint32_t s = 0; s < kShardsHere; ++s) {
      const int primary = copies.AwaitRedundant(s);
      if (primary >= 0) ++hosts[HostOf(copies.address(s, static_cast<uint32_t>(primary)))];
    }
    return hosts;
  };
  for (uint32_t s = 0; s < kShardsHere; ++s) {
    const int primary = copies.AwaitRedundant(s);
    ASSERT_GE(primary, 0) << copies.Describe();
    if (primary == 0) continue;
    TANDEM_ASSERT_OK(copies.HandOver(s, 1, 0));
    ASSERT_TRUE(copies.AwaitHandedOver(s, 1)) << copies.Describe();
  }
  ASSERT_EQ(primaries(), (std::map<std::string, int>{{"127.0.0.1", 3}})) << copies.Describe();
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto pushes, StartPushes(copies, kShardsHere));
  ASSERT_TRUE(pushes->AwaitAcknowledged(kSomePushes)) << pushes->End();

  Finished balanced;
  absl::Notification done;
  std::thread runs([&] {
    balanced = testing::RunTandem(PsCommand(copies, {"balance"}));
    done.Notify();
  });
  // The command waits until each earlier primary is in sync with its successor.
  while (!done.HasBeenNotified()) {
    for (uint32_t s = 0; s < kShardsHere; ++s) EXPECT_GE(copies.AwaitRedundant(s), 0) << copies.Describe();
    if (HasFailure()) break;
  }
  runs.join();
  EXPECT_EQ(balanced.exit_code, 0) << balanced.err << copies.Describe();
  EXPECT_THAT(balanced.out, HasSubstr("is the primary of term"));
  EXPECT_EQ(primaries(), (std::map<std::string, int>{{"127.0.0.1", 1}, {"127.0.0.2", 1}, {"127.0.0.3", 1}}))
      << balanced.out;
  const Finished again = testing::RunTandem(PsCommand(copies, {"balance"}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("nothing to move"));
  EXPECT_TRUE(pushes->EachPushCountsOnce()) << copies.Describe();
}

TEST(PsBalance, MovesNoFurtherShardIfAnEarlierPrimaryDoesNotComeBack) {
  ShardCopies copies(
      2, 1, [](uint32_t, uint32_t copy) { return absl::StrCat("127.0.0.", 1 + copy); },
      ShardCopies::Network::kRelayed);
  for (uint32_t s = 0; s < 2; ++s) {
    const int primary = copies.AwaitRedundant(s);
    ASSERT_GE(primary, 0) << copies.Describe();
    if (primary == 0) continue;
    TANDEM_ASSERT_OK(copies.HandOver(s, 1, 0));
    ASSERT_EQ(copies.AwaitRedundant(s), 0) << copies.Describe();
  }
  // The next primary does not reach the earlier one.
  for (uint32_t s = 0; s < 2; ++s) copies.CutFromCaller(s, 0, copies.process(s, 1).pid());
  const Finished balanced = testing::RunTandem(PsCommand(copies, {"balance", "--timeout", "3"}));
  EXPECT_EQ(balanced.exit_code, 1) << balanced.out;
  EXPECT_THAT(balanced.err, HasSubstr("is not back as a follower; the other moves were not made"));
  int moved = 0;
  for (uint32_t s = 0; s < 2; ++s) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ReplicaStatus status, copies.Status(s, 1));
    moved += status.role() == v1::REPLICA_ROLE_PRIMARY ? 1 : 0;
  }
  EXPECT_EQ(moved, 1) << copies.Describe();
}

TEST(PsDrain, TakesAllCopiesOfAHostOutWhileWorkersPush) {
  constexpr uint32_t kShardsHere = 2;
  ShardCopies copies(kShardsHere, 2,
                     [](uint32_t, uint32_t copy) { return absl::StrCat("127.0.0.", 1 + copy); });
  // The host has a primary and a follower.
  for (uint32_t s = 0; s < kShardsHere; ++s) {
    const int primary = copies.AwaitRedundant(s);
    ASSERT_GE(primary, 0) << copies.Describe();
    if (static_cast<uint32_t>(primary) == s) continue;
    TANDEM_ASSERT_OK(copies.HandOver(s, static_cast<uint32_t>(primary), s));
    ASSERT_EQ(copies.AwaitRedundant(s), static_cast<int>(s)) << copies.Describe();
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto pushes, StartPushes(copies, kShardsHere));
  ASSERT_TRUE(pushes->AwaitAcknowledged(kSomePushes)) << pushes->End();
  const Finished drained = testing::RunTandem(PsCommand(copies, {"drain", "127.0.0.1"}));
  EXPECT_EQ(drained.exit_code, 0) << drained.err << copies.Describe();
  for (uint32_t s = 0; s < kShardsHere; ++s) {
    EXPECT_EQ(copies.AwaitExit(s, 0), kLeft) << copies.process(s, 0).err();
    EXPECT_TRUE(copies.AwaitStatus(s, 1, [](const v1::ReplicaStatus& status) {
      return status.placement().in_sync_size() == 1 &&
             HostOf(status.placement().primary().address()) != "127.0.0.1" &&
             HostOf(status.placement().in_sync(0).address()) != "127.0.0.1";
    })) << copies.Describe();
  }
  ASSERT_TRUE(pushes->AwaitAcknowledged(kSomePushes)) << pushes->End();
  EXPECT_TRUE(pushes->EachPushCountsOnce()) << copies.Describe();
}

TEST(PsMoves, ACommandThatIsInterruptedLosesNoPushAndTheShardCanMoveAgain) {
  constexpr int kMoves = 10;
  ShardCopies copies(1, 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto pushes, StartPushes(copies, 1));
  CounterRandom random(1, 1);
  int moved = 0, interrupted = 0;
  for (int m = 0; m < kMoves; ++m) {
    const int found = copies.AwaitRedundant(0);
    ASSERT_GE(found, 0) << copies.Describe();
    const auto primary = static_cast<uint32_t>(found);
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ReplicaStatus before, copies.Status(0, primary));
    ASSERT_TRUE(pushes->AwaitAcknowledged(kSomePushes)) << pushes->End();
    TandemProcess move(PsCommand(copies, {"move", "--shard", "0", "--to", copies.address(0, 1 - primary)}));
    // Ctrl-C meets the start of the command, its questions, the hand-over, or its end.
    const absl::Time until = MonotonicNow() + absl::Microseconds(random.Below(120'000));
    while (MonotonicNow() < until) std::this_thread::yield();
    move.Signal(SIGINT);
    const int code = move.Wait();
    EXPECT_TRUE(code == 0 || code == 128 + SIGINT) << code << move.err();
    interrupted += code == 0 ? 0 : 1;
    ASSERT_TRUE(pushes->AwaitAcknowledged(kSomePushes)) << pushes->End() << copies.Describe();
    const int after = copies.AwaitRedundant(0);
    ASSERT_GE(after, 0) << copies.Describe();
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ReplicaStatus now, copies.Status(0, static_cast<uint32_t>(after)));
    EXPECT_LE(now.placement().term(), before.placement().term() + 1);
    if (code == 0) {
      EXPECT_NE(after, found);
    }
    moved += now.placement().term() > before.placement().term() ? 1 : 0;
  }
  // Another one is not in the way of what was left behind.
  const auto primary = static_cast<uint32_t>(copies.AwaitRedundant(0));
  const Finished last =
      testing::RunTandem(PsCommand(copies, {"move", "--shard", "0", "--to", copies.address(0, 1 - primary)}));
  EXPECT_EQ(last.exit_code, 0) << last.err;
  EXPECT_TRUE(pushes->EachPushCountsOnce()) << copies.Describe();
  std::printf("%d moves: %d commands were interrupted, the shard moved %d times\n", kMoves, interrupted,
              moved);
}

// A shard moves to a new machine: a copy is started there, made the primary, and the others are drained.
TEST(PsMoves, ACopyThatIsStartedByHandTakesTheShardOverAndTheOthersLeave) {
  ShardCopies copies(1, 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ps::Client> client, copies.Connect(0, 2 * kTestTimeout));
  TANDEM_ASSERT_OK(client->StartPushEpoch());
  TANDEM_ASSERT_OK(client->CreateTable(ps::EmbeddingTable("t", 8, ps::Sgd(1.0f), ps::Zeros())));
  const std::vector<float> gradient(8, -1.0f);
  const std::vector<uint64_t> ids = {7};
  uint64_t step = 0;
  const auto push = [&] {
    return client->Push(step++, {{.table = "t", .ids = ids, .gradients = gradient.data()}});
  };
  TANDEM_ASSERT_OK(push());
  const int found = copies.AwaitRedundant(0);
  ASSERT_GE(found, 0) << copies.Describe();
  const auto primary = static_cast<uint32_t>(found);
  const auto run = [&](const std::vector<std::string>& args) {
    return testing::RunTandem(PsCommand(copies, args));
  };
  TandemProcess added({"ps", "--index", "0", "--num-servers", "1", "--followers", "2", "--copy", "2",
                       "--listen", "127.0.0.1:0", "--lease", "600"},
                      {{"TANDEM_STORE", copies.store_address()}});
  ASSERT_TRUE(added.WaitForOutput(", copy 2 of shard 0")) << added.err();
  const size_t from = added.err().find("serving at ") + 11;
  const std::string address = added.err().substr(from, added.err().find(", copy", from) - from);

  const Finished moved = run({"move", "--shard", "0", "--to", address});
  ASSERT_EQ(moved.exit_code, 0) << moved.err << copies.Describe() << added.err();
  TANDEM_ASSERT_OK(push());
  // The others follow the new primary now, also the one that was the primary, and leave.
  for (const uint32_t follower : {1 - primary, primary}) {
    const Finished drained = run({"drain", copies.address(0, follower)});
    EXPECT_EQ(drained.exit_code, 0) << drained.err;
    EXPECT_EQ(copies.AwaitExit(0, follower), kLeft) << copies.process(0, follower).err();
  }
  TANDEM_ASSERT_OK(push());
  float row[8];
  TANDEM_ASSERT_OK(client->Pull(step, true, {{.table = "t", .ids = ids, .rows = row}}).status());
  EXPECT_EQ(row[0], 3.0f);
  // The last copy does not leave.
  const Finished last = run({"drain", address, "--timeout", "5"});
  EXPECT_EQ(last.exit_code, 1);
  EXPECT_THAT(last.err, HasSubstr("so it would be lost"));
  const Finished nowhere = run({"drain", "10.0.0.9", "--timeout", "2"});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("no copy is at 10.0.0.9"));
}

}  // namespace
}  // namespace tandem::cli
