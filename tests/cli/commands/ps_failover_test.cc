// SPDX-License-Identifier: Apache-2.0
// Real primaries and followers die together, one after another, and hand over while workers push: each push
// counts once, and none waits for long.

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

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

constexpr uint32_t kWorkers = 2;
constexpr uint64_t kPushesBetweenEvents = 100;

int Number(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

// TANDEM_FAILOVER_EVENTS=1000 is the long form.
int Events() { return Number("TANDEM_FAILOVER_EVENTS", 48); }
uint64_t Seed() { return static_cast<uint64_t>(Number("TANDEM_FAILOVER_SEED", 1)); }

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

// Watches a follower that is to become the primary, and measures for how long the shard then has one copy
// less.
class RedundancyWatch {
 public:
  // Begins to watch. `version` of the placement is in force.
  RedundancyWatch(ShardCopies& copies, uint32_t copy, uint64_t version)
      : thread_([this, &copies, copy, version] { Run(copies, copy, version); }) {}
  ~RedundancyWatch() { thread_.join(); }
  // Waits until the shard has its copies again. Returns milliseconds; negative: it has not got them.
  double Milliseconds() {
    done_.WaitForNotification();
    return milliseconds_;
  }
  // Returns whether the earlier primary went on with its tables.
  bool continued() const { return continued_; }

 private:
  void Run(ShardCopies& copies, uint32_t copy, uint64_t version) {
    const absl::Time deadline = MonotonicNow() + kTestTimeout;
    absl::Time leads = absl::InfinitePast();
    while (MonotonicNow() < deadline && milliseconds_ < 0) {
      const absl::StatusOr<v1::ReplicaStatus> status = copies.Status(0, copy, version, absl::Seconds(1));
      if (!status.ok()) continue;
      version = status->placement().version();
      if (status->role() != v1::REPLICA_ROLE_PRIMARY) continue;
      if (leads == absl::InfinitePast()) leads = MonotonicNow();
      if (status->placement().in_sync_size() == 0) continue;
      milliseconds_ = absl::ToDoubleMilliseconds(MonotonicNow() - leads);
      continued_ = status->links_size() == 1 && status->links(0).continued();
    }
    done_.Notify();
  }

  double milliseconds_ = -1;
  bool continued_ = false;
  absl::Notification done_;
  std::thread thread_;
};

// Hands a shard over again and again while 8 pushes are under way, and measures how long a push takes
// meanwhile, and for how long the shard has one copy less. TANDEM_HANDOVERS=20 TANDEM_HANDOVER_MIB=1024 is
// the long form.
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
  std::vector<double> pauses, longest, alone;
  int continued = 0;
  ids.resize(1);
  for (int h = 0; h < hand_overs; ++h) {
    const int found = copies.AwaitRedundant(0);
    ASSERT_GE(found, 0) << copies.Describe();
    const auto primary = static_cast<uint32_t>(found);
    ASSERT_TRUE(pushes->AwaitAcknowledged(kPushesBetweenEvents)) << pushes->End();
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ReplicaStatus before, copies.Status(0, primary));
    RedundancyWatch watch(copies, 1 - primary, before.placement().version());
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
    ASSERT_TRUE(copies.AwaitHandedOver(0, primary)) << copies.Describe();
    pauses.push_back(handed->pause_ms());
    longest.push_back(most);
    alone.push_back(watch.Milliseconds());
    EXPECT_GE(alone.back(), 0) << copies.Describe();
    continued += watch.continued() ? 1 : 0;
  }
  // On a loaded machine the next primary may forget the records that the earlier one lacks, and copy it.
  EXPECT_GT(continued, hand_overs / 2) << copies.Describe();
  EXPECT_TRUE(pushes->EachPushCountsOnce()) << copies.Describe();
  std::printf(
      "%d hand-overs of %llu MiB; servers held calls for %.0f ms (median), %.0f ms (longest); the longest "
      "push of each took %.1f ms (median), %.1f ms (longest); the shard had one copy less for %.1f ms "
      "(median), %.1f ms (longest); %d earlier primaries kept their tables\n",
      hand_overs, static_cast<unsigned long long>(rows >> 12), Median(pauses),
      *std::max_element(pauses.begin(), pauses.end()), Median(longest),
      *std::max_element(longest.begin(), longest.end()), Median(alone),
      *std::max_element(alone.begin(), alone.end()), continued);
}

TEST(PsHandOver, NothingIsLostWhenTheNewPrimaryIsKilledAsSoonAsTheEarlierOneFollows) {
  constexpr int kRounds = 3;
  ShardCopies copies(1, 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<ExactlyOnce> pushes,
      ExactlyOnce::Start(
          {.servers = 1, .workers = kWorkers, .dim = 8, .mode = ps::Async(), .connect = [&](uint32_t worker) {
             return copies.Connect(worker, 2 * kTestTimeout);
           }}));
  for (int round = 0; round < kRounds; ++round) {
    const int found = copies.AwaitRedundant(0);
    ASSERT_GE(found, 0) << copies.Describe();
    const auto primary = static_cast<uint32_t>(found);
    ASSERT_TRUE(pushes->AwaitAcknowledged(kPushesBetweenEvents)) << pushes->End();
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ReplicaStatus before, copies.Status(0, primary));
    RedundancyWatch watch(copies, 1 - primary, before.placement().version());
    TANDEM_ASSERT_OK(copies.HandOver(0, primary, 1 - primary)) << copies.Describe();
    ASSERT_GE(watch.Milliseconds(), 0) << copies.Describe();
    copies.Kill(0, 1 - primary);
    ASSERT_EQ(copies.AwaitTermAbove(0, before.placement().term() + 1), found) << copies.Describe();
    copies.Start(0, 1 - primary);
  }
  EXPECT_TRUE(pushes->EachPushCountsOnce()) << copies.Describe();
}

}  // namespace
}  // namespace tandem::cli
