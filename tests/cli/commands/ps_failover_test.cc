// SPDX-License-Identifier: Apache-2.0
// Real primaries and followers are killed and stopped while workers push. Each push counts exactly once.

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "ps/table.h"
#include "tests/cli/commands/exactly_once.h"
#include "tests/cli/commands/shard_copies.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using testing::kTestTimeout;

constexpr uint32_t kShards = 2;
constexpr uint32_t kWorkers = 2;
constexpr uint64_t kPushesBetweenEvents = 100;

int Number(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

// The number of events, over all modes. TANDEM_FAILOVER_EVENTS=1000 is the long form.
int Events() { return Number("TANDEM_FAILOVER_EVENTS", 48); }
uint64_t Seed() { return static_cast<uint64_t>(Number("TANDEM_FAILOVER_SEED", 1)); }

enum class Event {
  kKillPrimary,
  kKillFollower,
  kKillLearner,            // a process that copies the shard
  kStopPrimary,            // until another one has taken over
  kStopPrimaryForAMoment,  // shorter than the lease
  kStopFollower,           // until the primary goes on without it
  kStopStore,              // while a primary dies
  kHandOver,
  kKillPrimaryInHandOver,
  kKillFollowerInHandOver,
  kTerminatePrimary,  // with SIGTERM, as systemd does
  kFollowerLeaves,
};
// The exit codes of a process that has handed over, and of one that has left its shard.
constexpr int kComesBack = 75;
constexpr int kLeft = 0;
constexpr const char* kNames[] = {"primary killed",
                                  "follower killed",
                                  "learner killed",
                                  "primary stopped until it was replaced",
                                  "primary stopped for a moment",
                                  "follower stopped until it was left out",
                                  "primary killed while the store was away",
                                  "primary handed over",
                                  "primary killed while it handed over",
                                  "follower killed while the primary handed over",
                                  "primary terminated",
                                  "follower drained"};

class PsFailoverTest : public ::testing::TestWithParam<int> {
 protected:
  // Makes the event happen to a shard whose followers are in sync. Returns false after a failure, which it
  // has reported.
  bool Happen(Event event, uint32_t shard) {
    const int found = copies_.AwaitRedundant(shard);
    if (found < 0) {
      ADD_FAILURE() << copies_.Describe();
      return false;
    }
    const auto primary = static_cast<uint32_t>(found);
    const uint32_t follower = (primary + 1) % copies_.copies();
    const absl::StatusOr<v1::ReplicaStatus> before = copies_.Status(shard, primary);
    if (!before.ok()) {
      ADD_FAILURE() << before.status();
      return false;
    }
    const uint64_t term = before->placement().term();
    switch (event) {
      case Event::kKillPrimary:
        copies_.Kill(shard, primary);
        return Replaced(shard, term) && Restart(shard, primary);
      case Event::kKillFollower:
        copies_.Kill(shard, follower);
        return Restart(shard, follower);
      case Event::kKillLearner:
        copies_.Kill(shard, follower);
        if (!Restart(shard, follower)) return false;
        copies_.Kill(shard, follower);
        return Restart(shard, follower);
      case Event::kStopPrimary:
        ShardCopies::Stop(copies_.process(shard, primary));
        if (!Replaced(shard, term)) return false;
        copies_.process(shard, primary).Signal(SIGCONT);
        return copies_.AwaitEnd(shard, primary, "deposed") && Restart(shard, primary);
      case Event::kStopPrimaryForAMoment:
        ShardCopies::Stop(copies_.process(shard, primary));
        // A question without an answer takes a second, which is less than the lease. On a loaded machine it
        // may take more; then the primary is deposed, and ShardCopies starts it again.
        EXPECT_FALSE(copies_.Status(shard, primary).ok());
        copies_.process(shard, primary).Signal(SIGCONT);
        return true;
      case Event::kStopFollower: {
        ShardCopies::Stop(copies_.process(shard, follower));
        const bool left_out = copies_.AwaitStatus(shard, primary, [](const v1::ReplicaStatus& status) {
          return status.placement().in_sync_size() == 0;
        });
        copies_.process(shard, follower).Signal(SIGCONT);
        EXPECT_TRUE(left_out) << copies_.Describe();
        return left_out;
      }
      case Event::kStopStore:
        ShardCopies::Stop(copies_.store());
        copies_.Kill(shard, primary);
        // The follower cannot take over, and says why.
        EXPECT_TRUE(copies_.AwaitStatus(shard, follower, [](const v1::ReplicaStatus& status) {
          return absl::StrContains(status.failure(), "the placement document cannot be read");
        })) << copies_.Describe();
        copies_.store().Signal(SIGCONT);
        return Replaced(shard, term) && Restart(shard, primary);
      case Event::kHandOver: {
        TANDEM_EXPECT_OK(copies_.HandOver(shard, primary, follower));
        EXPECT_EQ(copies_.AwaitExit(shard, primary), kComesBack) << copies_.process(shard, primary).err();
        return Replaced(shard, term) && Restart(shard, primary);
      }
      case Event::kKillPrimaryInHandOver: {
        std::thread asks([&] { copies_.TryHandOver(shard, primary, follower, kTestTimeout).IgnoreError(); });
        Spin();
        copies_.process(shard, primary).Signal(SIGKILL);
        asks.join();
        // It may have handed over before.
        const int code = copies_.AwaitExit(shard, primary);
        EXPECT_TRUE(code == 128 + SIGKILL || code == kComesBack) << code;
        return Replaced(shard, term) && Restart(shard, primary);
      }
      case Event::kKillFollowerInHandOver: {
        absl::Status handed;
        std::thread asks(
            [&] { handed = copies_.TryHandOver(shard, primary, follower, absl::Seconds(5)).status(); });
        Spin();
        // A follower that is the only copy must not die.
        ShardCopies::Stop(copies_.process(shard, follower));
        asks.join();
        if (handed.ok()) {
          copies_.process(shard, follower).Signal(SIGCONT);
          EXPECT_EQ(copies_.AwaitExit(shard, primary), kComesBack);
          return Replaced(shard, term) && Restart(shard, primary);
        }
        return ResolveStoppedTakeover(shard, primary, follower);
      }
      case Event::kTerminatePrimary:
        copies_.process(shard, primary).Signal(SIGTERM);
        EXPECT_EQ(copies_.AwaitExit(shard, primary), kLeft) << copies_.process(shard, primary).err();
        return Replaced(shard, term) && Restart(shard, primary);
      case Event::kFollowerLeaves:
        TANDEM_EXPECT_OK(copies_.Leave(shard, follower));
        EXPECT_EQ(copies_.AwaitExit(shard, follower), kLeft) << copies_.process(shard, follower).err();
        return Restart(shard, follower);
    }
    return false;
  }
  // Lets some time pass, so that what follows meets another phase each time.
  void Spin() {
    const absl::Time until = MonotonicNow() + absl::Microseconds(random_.Below(30'000));
    while (MonotonicNow() < until) std::this_thread::yield();
  }
  // The follower was stopped while it may have been about to take over. The primary goes on, and the follower
  // is killed; or the follower has taken over, and goes on.
  bool ResolveStoppedTakeover(uint32_t shard, uint32_t primary, uint32_t follower) {
    const absl::Time deadline = MonotonicNow() + kTestTimeout;
    while (!copies_.HasEnded(shard, primary)) {
      const absl::StatusOr<v1::ReplicaStatus> status =
          copies_.Status(shard, primary, 0, absl::Milliseconds(50));
      if (status.ok() && status->serving() && status->placement().in_sync_size() == 0) {
        copies_.Kill(shard, follower);
        return Restart(shard, follower);
      }
      if (MonotonicNow() > deadline) {
        ADD_FAILURE() << copies_.Describe();
        return false;
      }
    }
    copies_.process(shard, follower).Signal(SIGCONT);
    EXPECT_EQ(copies_.AwaitExit(shard, primary), kComesBack) << copies_.process(shard, primary).err();
    return Restart(shard, primary);
  }
  bool Restart(uint32_t shard, uint32_t copy) {
    copies_.Start(shard, copy);
    return true;
  }
  bool Replaced(uint32_t shard, uint64_t term) {
    const bool replaced = copies_.AwaitTermAbove(shard, term) >= 0;
    EXPECT_TRUE(replaced) << copies_.Describe();
    return replaced;
  }

  CounterRandom random_{Seed(), static_cast<uint64_t>(100 + GetParam())};
  ShardCopies copies_{kShards, 1};
};

TEST_P(PsFailoverTest, EachPushCountsOnceWhileProcessesAreKilledAndStopped) {
  const int events = (Events() + 3) / 4;
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ExactlyOnce> pushes,
                              ExactlyOnce::Start({.servers = kShards,
                                                  .workers = kWorkers,
                                                  .dim = 8,
                                                  .mode = AllModes()[static_cast<size_t>(GetParam())].mode,
                                                  .connect = [&](uint32_t worker) {
                                                    return copies_.Connect(worker, 2 * kTestTimeout);
                                                  }}));
  CounterRandom random(Seed(), static_cast<uint64_t>(GetParam()));
  std::map<Event, int> counts;
  for (int e = 0; e < events; ++e) {
    // Every event meets loaded processes.
    ASSERT_TRUE(pushes->AwaitAcknowledged(kWorkers * kPushesBetweenEvents)) << pushes->End() << "\n"
                                                                            << copies_.Describe();
    // The short form has each kind in some mode; deaths of primaries are half of all events.
    const auto event =
        static_cast<Event>(e % 2 == 0 ? 0 : 1 + (e / 2 + GetParam() * events / 2) % (std::size(kNames) - 1));
    ASSERT_TRUE(Happen(event, static_cast<uint32_t>(random.Below(kShards))))
        << "event " << e << ", " << kNames[static_cast<size_t>(event)] << ", seed " << Seed();
    ++counts[event];
  }
  EXPECT_TRUE(pushes->EachPushCountsOnce()) << "seed " << Seed() << "\n" << copies_.Describe();
  std::printf("%s: seed %llu, %llu pushes", AllModes()[static_cast<size_t>(GetParam())].name,
              static_cast<unsigned long long>(Seed()),
              static_cast<unsigned long long>(pushes->acknowledged()));
  for (const auto& [event, count] : counts)
    std::printf("; %d x %s", count, kNames[static_cast<size_t>(event)]);
  std::printf("\n");
}

INSTANTIATE_TEST_SUITE_P(Modes, PsFailoverTest, ::testing::Range(0, 4),
                         [](const ::testing::TestParamInfo<int>& info) {
                           return std::string(AllModes()[static_cast<size_t>(info.param)].name);
                         });

// Two of three copies die at once; any of them may be left.
TEST(PsFailoverTwoFollowers, EachPushCountsOnceWhileThePrimaryAndAFollowerDieTogether) {
  const int events = std::max(3, Events() / 8);
  ShardCopies copies(1, 2);
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<ExactlyOnce> pushes,
      ExactlyOnce::Start(
          {.servers = 1, .workers = kWorkers, .dim = 8, .mode = ps::Async(), .connect = [&](uint32_t worker) {
             return copies.Connect(worker, 2 * kTestTimeout);
           }}));
  CounterRandom random(Seed(), 17);
  for (int e = 0; e < events; ++e) {
    ASSERT_TRUE(pushes->AwaitAcknowledged(kWorkers * kPushesBetweenEvents)) << pushes->End() << "\n"
                                                                            << copies.Describe();
    const int found = copies.AwaitRedundant(0);
    ASSERT_GE(found, 0) << copies.Describe();
    const auto primary = static_cast<uint32_t>(found);
    const auto follower = (primary + 1 + static_cast<uint32_t>(random.Below(2))) % 3;
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ReplicaStatus before, copies.Status(0, primary));
    // A follower that has taken over is alone, so it must not die; one that stands still does not take over.
    if (random.Below(2) == 0) {
      copies.Kill(0, follower);
      copies.Kill(0, primary);
    } else {
      ShardCopies::Stop(copies.process(0, follower));
      copies.Kill(0, primary);
      copies.Kill(0, follower);
    }
    EXPECT_EQ(copies.AwaitTermAbove(0, before.placement().term()), static_cast<int>(3 - primary - follower))
        << "event " << e << ", seed " << Seed() << "\n"
        << copies.Describe();
    copies.Start(0, primary);
    copies.Start(0, follower);
  }
  EXPECT_TRUE(pushes->EachPushCountsOnce()) << "seed " << Seed() << "\n" << copies.Describe();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Measures the time from the death of a primary to the first push that the next one acknowledges.
// TANDEM_FAILOVER_KILLS=200 is the long form.
TEST(PsFailoverTime, APushIsAcknowledgedSoonAfterThePrimaryIsKilled) {
  const int kills = Number("TANDEM_FAILOVER_KILLS", 5);
  ShardCopies copies(1, 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ps::Client> client, copies.Connect(0, kTestTimeout));
  TANDEM_ASSERT_OK(client->StartPushEpoch());
  TANDEM_ASSERT_OK(client->CreateTable(ps::EmbeddingTable("t", 8, ps::Sgd(1.0f), ps::Zeros())));
  const std::vector<float> gradient(8, -1.0f);
  const std::vector<uint64_t> ids = {7};
  uint64_t step = 0;
  const auto push = [&] {
    return client->Push(step++, {{.table = "t", .ids = ids, .gradients = gradient.data()}});
  };
  std::vector<double> detected, acknowledged;
  for (int k = 0; k < kills; ++k) {
    const int found = copies.AwaitRedundant(0);
    ASSERT_GE(found, 0) << copies.Describe();
    const auto primary = static_cast<uint32_t>(found);
    TANDEM_ASSERT_OK(push());
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ReplicaStatus follower, copies.Status(0, 1 - primary));
    absl::Time noticed;
    std::thread watcher([&] {
      TANDEM_EXPECT_OK(copies.Status(0, 1 - primary, follower.placement().version(), kTestTimeout));
      noticed = MonotonicNow();
    });
    const absl::Time killed = MonotonicNow();
    copies.process(0, primary).Signal(SIGKILL);
    const absl::Status pushed = push();
    const absl::Time done = MonotonicNow();
    watcher.join();
    TANDEM_ASSERT_OK(pushed) << copies.Describe();
    acknowledged.push_back(absl::ToDoubleMilliseconds(done - killed));
    detected.push_back(absl::ToDoubleMilliseconds(noticed - killed));
    EXPECT_EQ(copies.process(0, primary).Wait(), 128 + SIGKILL);
    copies.Start(0, primary);
  }
  float row[8];
  TANDEM_ASSERT_OK(client->Pull(step, true, {{.table = "t", .ids = ids, .rows = row}}).status());
  EXPECT_EQ(row[0], static_cast<float>(step));
  std::printf(
      "%d kills; detection: median %.1f ms, longest %.1f ms; first push acknowledged: median %.1f ms, "
      "longest %.1f ms\n",
      kills, Median(detected), *std::max_element(detected.begin(), detected.end()), Median(acknowledged),
      *std::max_element(acknowledged.begin(), acknowledged.end()));
}

// Hands a shard over again and again while 8 pushes are under way, and measures how long a push takes
// meanwhile. TANDEM_HANDOVERS=20 TANDEM_HANDOVER_MIB=1024 is the long form.
TEST(PsHandOver, EachPushCountsOnceAndNoneWaitsLong) {
  const int hand_overs = Number("TANDEM_HANDOVERS", 4);
  const auto rows = static_cast<uint64_t>(Number("TANDEM_HANDOVER_MIB", 32)) << 12;  // of 256 bytes
  ShardCopies copies(1, 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ps::Client> client, copies.Connect(1, 2 * kTestTimeout));
  ps::v1::TableConfig big = ps::EmbeddingTable("big", 64, ps::Sgd(1.0f), ps::Zeros());
  big.set_num_workers(2);
  *big.mutable_update_mode() = ps::Async();
  TANDEM_ASSERT_OK(client->CreateTable(big));
  TANDEM_ASSERT_OK(client->StartPushEpoch());
  constexpr uint64_t kRows = 8192;  // of a push
  const std::vector<float> gradients(kRows * 64, -1.0f);
  std::vector<uint64_t> ids(kRows);
  uint64_t step = 0;
  for (; step * kRows < rows; ++step) {
    for (uint64_t i = 0; i < kRows; ++i) ids[i] = step * kRows + i;
    TANDEM_ASSERT_OK(client->Push(step, {{.table = "big", .ids = ids, .gradients = gradients.data()}}));
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<ExactlyOnce> pushes,
      ExactlyOnce::Start({.servers = 1, .workers = 1, .mode = ps::Async(), .connect = [&](uint32_t worker) {
                            return copies.Connect(worker, 2 * kTestTimeout);
                          }}));
  std::vector<double> pauses, longest;
  ids.resize(1);
  for (int h = 0; h < hand_overs; ++h) {
    const int found = copies.AwaitRedundant(0);
    ASSERT_GE(found, 0) << copies.Describe();
    const auto primary = static_cast<uint32_t>(found);
    ASSERT_TRUE(pushes->AwaitAcknowledged(kPushesBetweenEvents)) << pushes->End();
    absl::StatusOr<v1::HandOverResponse> handed;
    absl::Notification done;
    std::thread asks([&] {
      handed = copies.HandOver(0, primary, 1 - primary);
      done.Notify();
    });
    double most = 0;
    // The last push begins after the hand-over.
    for (bool last = false; !last;) {
      last = done.HasBeenNotified();
      ids[0] = step % rows;
      const absl::Time began = MonotonicNow();
      const absl::Status pushed =
          client->Push(step++, {{.table = "big", .ids = ids, .gradients = gradients.data()}});
      EXPECT_TRUE(pushed.ok()) << pushed;
      if (!pushed.ok()) break;
      most = std::max(most, absl::ToDoubleMilliseconds(MonotonicNow() - began));
    }
    asks.join();
    TANDEM_ASSERT_OK(handed) << copies.Describe();
    EXPECT_EQ(copies.AwaitExit(0, primary), kComesBack);
    pauses.push_back(handed->pause_ms());
    longest.push_back(most);
    copies.Start(0, primary);
  }
  EXPECT_TRUE(pushes->EachPushCountsOnce()) << copies.Describe();
  std::printf(
      "%d hand-overs of %llu MiB; servers held calls for %.0f ms (median), %.0f ms (longest); the longest "
      "push of each took %.1f ms (median), %.1f ms (longest)\n",
      hand_overs, static_cast<unsigned long long>(rows >> 12), Median(pauses),
      *std::max_element(pauses.begin(), pauses.end()), Median(longest),
      *std::max_element(longest.begin(), longest.end()));
}

}  // namespace
}  // namespace tandem::cli
