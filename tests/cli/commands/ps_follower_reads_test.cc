// SPDX-License-Identifier: Apache-2.0
// Clients read at real followers while these and their primaries are killed and stopped. No read fails, and
// each has every push that was acknowledged max_lag before it began.

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/timed_wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/table.h"
#include "tests/cli/commands/exactly_once.h"
#include "tests/cli/commands/shard_copies.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using testing::kTestTimeout;

constexpr absl::Duration kMaxLag = absl::Milliseconds(500);
constexpr uint64_t kRow = 7;
constexpr int kReaders = 2;

class PsFollowerReadsTest : public ::testing::Test {
 protected:
  explicit PsFollowerReadsTest(uint32_t followers = 1) : copies_(1, followers) {}
  void SetUp() override {
    TANDEM_ASSERT_OK_AND_ASSIGN(writer_, copies_.Connect(0, 2 * kTestTimeout));
    ps::v1::TableConfig table;
    table.set_name("t");
    table.set_dim(1);
    table.set_num_workers(1);
    table.mutable_optimizer()->set_kind("sgd");
    table.mutable_optimizer()->set_learning_rate(1);
    table.mutable_initializer()->set_kind("constant");
    *table.mutable_update_mode() = ps::Async();
    TANDEM_ASSERT_OK(writer_->CreateTable(table));
    for (int r = 0; r < kReaders; ++r) {
      TANDEM_ASSERT_OK_AND_ASSIGN(std::unique_ptr<ps::Client> client,
                                  copies_.Connect(0, 2 * kTestTimeout, kMaxLag));
      TANDEM_ASSERT_OK(client->OpenTable("t"));
      readers_.push_back(std::move(client));
    }
    threads_.emplace_back([this] { Write(); });
    for (const auto& reader : readers_) threads_.emplace_back([this, &reader] { Read(*reader); });
  }
  void TearDown() override {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  void Write() {
    const uint64_t ids[] = {kRow};
    const float gradients[] = {-1};
    for (uint64_t step = 0; !stop_; ++step) {
      const absl::Status pushed = writer_->Push(step, {{.table = "t", .ids = ids, .gradients = gradients}});
      TANDEM_EXPECT_OK(pushed);
      if (!pushed.ok()) return;
      absl::MutexLock lock(&mutex_);
      acknowledged_.push_back(MonotonicNow());
    }
  }
  void Read(ps::Client& client) {
    const uint64_t ids[] = {kRow};
    while (!stop_) {
      const absl::Time certain = MonotonicNow() - kMaxLag;
      float row = -1;
      const auto read = client.Pull(0, /*read_only=*/true, {{.table = "t", .ids = ids, .rows = &row}});
      TANDEM_EXPECT_OK(read);
      absl::MutexLock lock(&mutex_);
      const auto later = std::upper_bound(acknowledged_.begin(), acknowledged_.end(), certain);
      const auto pushes = static_cast<float>(later - acknowledged_.begin());
      EXPECT_GE(row, pushes);
      if (!read.ok() || row < pushes) return;
      ++reads_;
    }
  }
  // Waits until each reader has been answered by a follower `more` times more.
  bool AwaitReadsAtFollowers(uint64_t more) {
    const absl::Time deadline = MonotonicNow() + kTestTimeout;
    for (const auto& reader : readers_) {
      const uint64_t before = reader->FollowerReads().by_followers;
      while (reader->FollowerReads().by_followers < before + more) {
        if (MonotonicNow() > deadline || HasFailure()) {
          ADD_FAILURE() << "reads do not go to followers: " << copies_.Describe();
          return false;
        }
        std::this_thread::yield();
      }
      EXPECT_LE(reader->FollowerReads().largest_lag, kMaxLag);
    }
    return true;
  }
  // Waits for `more` reads, at whatever copy.
  bool AwaitReads(uint64_t more) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [this, until = reads_ + more]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return reads_ >= until; };
    return AwaitFor(&mutex_, absl::Condition(&enough), kTestTimeout);
  }

  ShardCopies copies_;
  std::unique_ptr<ps::Client> writer_;
  std::vector<std::unique_ptr<ps::Client>> readers_;
  std::atomic<bool> stop_{false};
  absl::Mutex mutex_;
  std::vector<absl::Time> acknowledged_ ABSL_GUARDED_BY(mutex_);  // when each push was acknowledged, in order
  uint64_t reads_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_;
};

TEST_F(PsFollowerReadsTest, NoReadFailsOrIsTooOldWhileCopiesAreKilledAndStopped) {
  int primary = copies_.AwaitRedundant(0);
  ASSERT_GE(primary, 0);
  const auto other = [](int copy) { return static_cast<uint32_t>(1 - copy); };
  ASSERT_TRUE(AwaitReadsAtFollowers(100));

  copies_.Kill(0, other(primary));
  ASSERT_TRUE(AwaitReads(100));
  copies_.Start(0, other(primary));
  ASSERT_GE(copies_.AwaitRedundant(0), 0);
  ASSERT_TRUE(AwaitReadsAtFollowers(100));

  copies_.Kill(0, static_cast<uint32_t>(primary));
  ASSERT_TRUE(AwaitReads(100));
  copies_.Start(0, static_cast<uint32_t>(primary));
  primary = copies_.AwaitRedundant(0);
  ASSERT_GE(primary, 0);
  ASSERT_TRUE(AwaitReadsAtFollowers(100));

  // The follower stands still until the primary goes on without it. Then it finds old beats and requests.
  ShardCopies::Stop(copies_.process(0, other(primary)));
  EXPECT_TRUE(copies_.AwaitStatus(0, static_cast<uint32_t>(primary), [](const v1::ReplicaStatus& status) {
    return status.placement().in_sync_size() == 0;
  }));
  ASSERT_TRUE(AwaitReads(100));
  copies_.process(0, other(primary)).Signal(SIGCONT);
  ASSERT_TRUE(AwaitReads(100));
  primary = copies_.AwaitRedundant(0);
  ASSERT_GE(primary, 0);
  ASSERT_TRUE(AwaitReadsAtFollowers(100));

  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ReplicaStatus follower, copies_.Status(0, other(primary)));
  EXPECT_GT(follower.follower_reads(), 0u);
}

class PsFollowerReadsTwoFollowersTest : public PsFollowerReadsTest {
 protected:
  PsFollowerReadsTwoFollowersTest() : PsFollowerReadsTest(2) {}
};

// The old primary and its follower go on at the same time, and find each other before the new primary does.
TEST_F(PsFollowerReadsTwoFollowersTest, AFollowerBelievesNoPrimaryThatHasASuccessor) {
  const int found = copies_.AwaitRedundant(0);
  ASSERT_GE(found, 0);
  const auto primary = static_cast<uint32_t>(found);
  const uint32_t follower = (primary + 1) % 3;
  ASSERT_TRUE(AwaitReadsAtFollowers(100));
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ReplicaStatus before, copies_.Status(0, primary));
  ShardCopies::Stop(copies_.process(0, follower));
  ShardCopies::Stop(copies_.process(0, primary));
  EXPECT_GE(copies_.AwaitTermAbove(0, before.placement().term()), 0) << copies_.Describe();
  ASSERT_TRUE(AwaitReads(200));
  copies_.process(0, follower).Signal(SIGCONT);
  copies_.process(0, primary).Signal(SIGCONT);
  ASSERT_TRUE(AwaitReads(500));
  ASSERT_TRUE(copies_.AwaitEnd(0, primary, "deposed"));
  copies_.Start(0, primary);
  ASSERT_GE(copies_.AwaitRedundant(0), 0);
  ASSERT_TRUE(AwaitReadsAtFollowers(100));
}

}  // namespace
}  // namespace tandem::cli
