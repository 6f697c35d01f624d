// SPDX-License-Identifier: Apache-2.0
// Checkpoints that servers write while pushes go on.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/timed_wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/digest.h"
#include "tests/ps/server/cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::HasSubstr;

constexpr uint32_t kDim = 3;

std::string Commit(const std::string& unfinished, uint64_t step, const std::vector<v1::SavedFile>& written) {
  TANDEM_EXPECT_OK(WriteDenseState(unfinished, {}));
  v1::CheckpointManifest manifest;
  manifest.set_step(step);
  const absl::StatusOr<std::string> path = CommitCheckpoint(unfinished, manifest, written);
  TANDEM_EXPECT_OK(path);
  return path.value_or("");
}

// Saves a complete checkpoint on which no other builds, while pushes wait.
std::string SaveAtRest(Cluster& cluster, const std::string& root, uint64_t step) {
  const absl::StatusOr<std::string> unfinished = BeginCheckpoint(root, step);
  TANDEM_EXPECT_OK(unfinished);
  std::vector<v1::SavedFile> written;
  for (size_t s = 0; s < cluster.size(); ++s) {
    const auto saved = cluster.server(s).Save(*unfinished);
    TANDEM_EXPECT_OK(saved);
    written.insert(written.end(), saved->written().begin(), saved->written().end());
  }
  return Commit(*unfinished, step, written);
}

void Train(Cluster& cluster, uint64_t step) {
  CounterRandom random(5, step);
  PushOf push{.table = "user", .dim = kDim};
  for (int i = 0; i < 20; ++i) push.ids.push_back(random.Below(400) * 7919);
  TANDEM_EXPECT_OK(cluster.Pull(0, step, "user", kDim, push.ids));
  for (size_t i = 0; i < push.ids.size() * kDim; ++i) {
    push.gradients.push_back(static_cast<float>(random.Below(100)) * 0.01f);
  }
  TANDEM_EXPECT_OK(cluster.Push({.step = step, .sequence = step + 1}, push));
}

uint64_t DigestOf(const std::string& checkpoint) {
  const absl::StatusOr<CheckpointDigest> digest = DigestCheckpoint(checkpoint);
  TANDEM_EXPECT_OK(digest);
  return digest.ok() ? digest->tables[0].digest + 31 * digest->tables[0].rows : 0;
}

v1::TableConfig Config() {
  v1::TableConfig config = TestTable("user", kDim, 1, Async(), Adagrad(0.1f));
  *config.mutable_eviction() = EvictAfter(100);
  return config;
}

// Stops the thread that writes a begun checkpoint at one of its rows. Servers must be destroyed first, or
// the latch be released.
class RowLatch {
 public:
  // Returns options of a server, or of several of which each writes in turn.
  ParameterServerOptions Options(ParameterServerOptions options = {}) {
    options.before_checkpoint_row = [this] { Pass(); };
    return options;
  }
  // Makes the writer stop before row `row` of those that it writes from now on, counted from 1.
  void Hold(uint64_t row) {
    absl::MutexLock lock(&mutex_);
    rows_ = 0;
    held_row_ = row;
    is_reached_ = false;
  }
  // Blocks until the writer has got there; fails after a minute.
  void AwaitReached() {
    absl::MutexLock lock(&mutex_);
    ASSERT_TRUE(AwaitFor(&mutex_, absl::Condition(&is_reached_), absl::Minutes(1)));
  }
  void Release() { Hold(0); }

 private:
  void Pass() {
    absl::MutexLock lock(&mutex_);
    if (++rows_ != held_row_) return;
    is_reached_ = true;
    const uint64_t row = held_row_;
    const auto released = [this, row]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return held_row_ != row; };
    AwaitFor(&mutex_, absl::Condition(&released), absl::Minutes(2));
  }

  absl::Mutex mutex_;
  uint64_t rows_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t held_row_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: none
  bool is_reached_ ABSL_GUARDED_BY(mutex_) = false;
};

std::shared_ptr<TestCall> StartFinish(Driver& server, const std::string& directory) {
  v1::SaveCheckpointRequest request;
  request.set_directory(directory);
  request.set_begun(true);
  return server.Start("SaveCheckpoint", Bytes(request.SerializeAsString()));
}

double LongestPause(Driver& server) {
  const auto statistics =
      server.Call<v1::ServerStatistics>("GetServerStatistics", v1::GetServerStatisticsRequest());
  return statistics.ok() ? statistics->longest_checkpoint_pause_s() : -1.0;
}

TEST(AsyncCheckpoint, HoldsTheMomentAtWhichItWasBegunWhilePushesGoOn) {
  const TempDir dir, rest;
  RowLatch latch;
  Cluster cluster(2, latch.Options());
  TANDEM_ASSERT_OK(cluster.CreateTable(Config()));
  uint64_t step = 1, deltas = 0;
  std::string base, path;
  for (int round = 1; round <= 8; ++round) {
    for (int i = 0; i < 20; ++i) Train(cluster, step++);
    const uint64_t expected = DigestOf(SaveAtRest(cluster, rest.path(), step));
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, BeginCheckpoint(dir.path(), step));
    const uint64_t saved_step = step;
    for (size_t s = 0; s < cluster.size(); ++s) {
      TANDEM_ASSERT_OK(cluster.server(s).BeginSave(unfinished, CheckpointName(saved_step), base));
    }
    for (int i = 0; i < 10; ++i) Train(cluster, step++);
    // Server 0 has written some rows, of those of the same buckets, too, when the next pushes come.
    latch.Hold(1 + static_cast<uint64_t>(round));
    const std::shared_ptr<TestCall> first = StartFinish(cluster.server(0), unfinished);
    latch.AwaitReached();
    for (int i = 0; i < 10; ++i) Train(cluster, step++);
    latch.Release();
    TANDEM_ASSERT_OK(first->Wait().status());
    std::vector<v1::SavedFile> written;
    for (size_t s = 0; s < cluster.size(); ++s) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const v1::SaveCheckpointResponse saved,
                                  cluster.server(s).FinishSave(unfinished));
      ASSERT_EQ(saved.written_size(), 1);
      deltas += saved.written(0).base().empty() ? 0 : 1;
      written.insert(written.end(), saved.written().begin(), saved.written().end());
    }
    path = Commit(unfinished, saved_step, written);
    EXPECT_EQ(DigestOf(path), expected);
    base = CheckpointName(saved_step);
  }
  EXPECT_EQ(deltas, 14u);  // all but the first, of two servers
  v1::ServerStatistics statistics;
  TANDEM_ASSERT_OK_AND_ASSIGN(statistics, cluster.server(0).Call<v1::ServerStatistics>(
                                              "GetServerStatistics", v1::GetServerStatisticsRequest()));
  EXPECT_EQ(statistics.checkpoint_async_saves(), 8u);
  EXPECT_EQ(statistics.checkpoint_saves(), 16u);
  // The clocks and fences are of that moment, too: a push that came later is new to a server that loads it.
  Cluster other(2);
  TANDEM_ASSERT_OK(other.CreateTable(Config()));
  for (size_t s = 0; s < other.size(); ++s) TANDEM_ASSERT_OK(other.server(s).Load(path));
  TANDEM_ASSERT_OK(other.Pull(0, step, "user", kDim, {7919}).status());
}

TEST(AsyncCheckpoint, AnAbandonedOneLeavesTheNextABase) {
  const TempDir dir, rest;
  Cluster cluster(1);
  Driver& server = cluster.server(0);
  TANDEM_ASSERT_OK(cluster.CreateTable(Config()));
  for (uint64_t step = 1; step <= 20; ++step) Train(cluster, step);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string first, BeginCheckpoint(dir.path(), 1));
  TANDEM_ASSERT_OK(server.BeginSave(first, CheckpointName(1)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto saved, server.FinishSave(first));
  Commit(first, 1, {saved.written().begin(), saved.written().end()});
  for (uint64_t step = 21; step <= 30; ++step) Train(cluster, step);
  // This one cannot be written: a directory is where its file should be.
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string second, BeginCheckpoint(dir.path(), 2));
  std::filesystem::create_directories(second + "/user.0-of-1.table.tmp/x");
  TANDEM_ASSERT_OK(server.BeginSave(second, CheckpointName(2), CheckpointName(1)));
  EXPECT_FALSE(server.FinishSave(second).ok());
  std::filesystem::remove_all(second);
  for (uint64_t step = 31; step <= 40; ++step) Train(cluster, step);
  const uint64_t expected = DigestOf(SaveAtRest(cluster, rest.path(), 3));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string third, BeginCheckpoint(dir.path(), 3));
  TANDEM_ASSERT_OK(server.BeginSave(third, CheckpointName(3), CheckpointName(1)));
  for (uint64_t step = 41; step <= 50; ++step) Train(cluster, step);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto delta, server.FinishSave(third));
  EXPECT_EQ(delta.written(0).base(), CheckpointName(1));
  EXPECT_EQ(DigestOf(Commit(third, 3, {delta.written().begin(), delta.written().end()})), expected);
}

TEST(AsyncCheckpoint, OneThatNobodyWaitsForGivesWayToTheNext) {
  const TempDir dir, rest;
  Cluster cluster(1);
  Driver& server = cluster.server(0);
  TANDEM_ASSERT_OK(cluster.CreateTable(Config()));
  TANDEM_ASSERT_OK(server.BeginSave(dir.File("first")));
  for (uint64_t step = 1; step <= 5; ++step) Train(cluster, step);
  const uint64_t expected = DigestOf(SaveAtRest(cluster, rest.path(), 2));
  EXPECT_THAT(server.FinishSave(dir.File("first")), StatusIs(absl::StatusCode::kAborted));
  TANDEM_ASSERT_OK(server.BeginSave(dir.File("third")));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, BeginCheckpoint(dir.path(), 4));
  TANDEM_ASSERT_OK(server.BeginSave(unfinished));
  for (uint64_t step = 6; step <= 10; ++step) Train(cluster, step);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto saved, server.FinishSave(unfinished));
  EXPECT_EQ(DigestOf(Commit(unfinished, 4, {saved.written().begin(), saved.written().end()})), expected);
  // This one is begun when the server stops.
  TANDEM_ASSERT_OK(server.BeginSave(dir.File("last")));
}

TEST(AsyncCheckpoint, WhileOneIsWrittenAnotherIsRefusedAndAnOrdinarySaveHoldsUpNothingElse) {
  const TempDir dir;
  RowLatch latch;
  Cluster cluster(1, latch.Options());
  Driver& server = cluster.server(0);
  TANDEM_ASSERT_OK(cluster.CreateTable(Config()));
  for (uint64_t step = 1; step <= 5; ++step) Train(cluster, step);
  TANDEM_ASSERT_OK(server.BeginSave(dir.path()));
  latch.Hold(2);
  const std::shared_ptr<TestCall> begun = StartFinish(server, dir.path());
  latch.AwaitReached();
  EXPECT_THAT(server.BeginSave(dir.File("other")),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("is not written yet")));
  v1::SaveCheckpointRequest request;
  std::filesystem::create_directories(dir.File("whole"));
  request.set_directory(dir.File("whole"));
  const std::shared_ptr<TestCall> whole = server.Start("SaveCheckpoint", Bytes(request.SerializeAsString()));
  TANDEM_EXPECT_OK(server.Flush("user"));
  v1::TableConfig item = Config();
  item.set_name("item");
  TANDEM_EXPECT_OK(server.CreateTable(item));
  EXPECT_FALSE(begun->answered());
  EXPECT_FALSE(whole->answered());
  latch.Release();
  TANDEM_EXPECT_OK(begun->Wait().status());
  TANDEM_EXPECT_OK(whole->Wait().status());
  EXPECT_TRUE(std::filesystem::exists(dir.File("whole/user.0-of-1.table")));
}

TEST(AsyncCheckpoint, PushesWaitWithinABucketOnceCopiesTakeTooMuchMemory) {
  const TempDir dir, rest;
  RowLatch latch;
  ParameterServerOptions options = latch.Options({.num_buckets = 1});
  options.max_copied_bytes = 1;
  Cluster cluster(1, options);
  Driver& server = cluster.server(0);
  TANDEM_ASSERT_OK(cluster.CreateTable(Config()));
  PushOf all{.table = "user", .dim = kDim};
  for (uint64_t id = 0; id < 1000; ++id) all.ids.push_back(id);
  all.gradients.assign(all.ids.size() * kDim, 0.5f);
  TANDEM_ASSERT_OK(cluster.Pull(0, 1, "user", kDim, all.ids));
  TANDEM_ASSERT_OK(cluster.Push({.step = 1}, all));
  const uint64_t expected = DigestOf(SaveAtRest(cluster, rest.path(), 1));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, BeginCheckpoint(dir.path(), 1));
  TANDEM_ASSERT_OK(server.BeginSave(unfinished));
  latch.Hold(1);
  const std::shared_ptr<TestCall> finish = StartFinish(server, unfinished);
  latch.AwaitReached();
  TANDEM_ASSERT_OK(cluster.Push({.step = 2}, all));  // copies rows; the bucket has been begun
  latch.Hold(900);
  latch.AwaitReached();
  const absl::Time held = MonotonicNow();
  const std::shared_ptr<TestCall> push = server.StartPush({.step = 3}, {all});
  while (MonotonicNow() < held + absl::Milliseconds(50)) server.Table("user");
  EXPECT_FALSE(push->answered());
  const double waited = absl::ToDoubleSeconds(MonotonicNow() - held);
  latch.Release();
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto saved, server.FinishSave(unfinished));
  TANDEM_EXPECT_OK(finish->Wait().status());
  TANDEM_EXPECT_OK(push->Wait().status());
  EXPECT_GE(LongestPause(server), waited);
  EXPECT_EQ(DigestOf(Commit(unfinished, 1, {saved.written().begin(), saved.written().end()})), expected);
}

TEST(AsyncCheckpoint, ErrorsNameTheServerAndTheDirectory) {
  const TempDir dir;
  Cluster cluster(1);
  TANDEM_ASSERT_OK(cluster.CreateTable(Config()));
  TANDEM_EXPECT_OK(cluster.server(0).BeginSave(dir.File("missing")));
  EXPECT_THAT(cluster.server(0).FinishSave(dir.File("missing")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing is no directory here")));
  EXPECT_THAT(cluster.server(0).FinishSave(dir.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("is not begun here")));
}

}  // namespace
}  // namespace tandem::ps::testing
