// SPDX-License-Identifier: Apache-2.0
// Checkpoints that hold only what has changed since the one before.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/chain.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/digest.h"
#include "tests/ps/server/cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kDim = 3;

// Saves a checkpoint of all servers. Without a `base` it is complete. `remember`: the next may build on it.
absl::StatusOr<std::string> Save(Cluster& cluster, const std::string& root, uint64_t step, uint64_t base = 0,
                                 bool remember = true, bool commit = true) {
  TANDEM_ASSIGN_OR_RETURN(const std::string unfinished, BeginCheckpoint(root, step));
  std::vector<v1::SavedFile> written;
  for (size_t s = 0; s < cluster.size(); ++s) {
    TANDEM_ASSIGN_OR_RETURN(const v1::SaveCheckpointResponse saved,
                            cluster.server(s).Save(unfinished, remember ? CheckpointName(step) : "",
                                                   base == 0 ? "" : CheckpointName(base)));
    written.insert(written.end(), saved.written().begin(), saved.written().end());
  }
  if (!commit) return absl::AbortedError("not committed");
  TANDEM_RETURN_IF_ERROR(WriteDenseState(unfinished, {}));
  v1::CheckpointManifest manifest;
  manifest.set_step(step);
  return CommitCheckpoint(unfinished, manifest, written);
}

absl::Status Load(Cluster& cluster, const std::string& path) {
  for (size_t s = 0; s < cluster.size(); ++s) TANDEM_RETURN_IF_ERROR(cluster.server(s).Load(path));
  return absl::OkStatus();
}

// Pulls and pushes some ids, the same for the same step.
void Train(Cluster& cluster, const std::string& table, uint64_t step) {
  CounterRandom random(5, step);
  PushOf push{.table = table, .dim = kDim};
  for (int i = 0; i < 20; ++i) push.ids.push_back(random.Below(400) * 7919);
  TANDEM_EXPECT_OK(cluster.Pull(0, step, table, kDim, push.ids));
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

// Returns the number of files of the checkpoint that build on another.
int Deltas(const std::string& checkpoint) {
  const absl::StatusOr<v1::CheckpointManifest> manifest = ReadManifest(checkpoint);
  TANDEM_EXPECT_OK(manifest);
  int deltas = 0;
  for (const v1::CheckpointFile& file : manifest->files()) deltas += file.base().empty() ? 0 : 1;
  return deltas;
}

v1::TableConfig Config(const std::string& name = "user") {
  return TestTable(name, kDim, 1, Async(), Adagrad(0.1f));
}

TEST(IncrementalCheckpoint, AChainLoadsOntoAnyNumberOfServersAsACompleteOne) {
  const TempDir dir, complete;
  Cluster cluster(2);
  TANDEM_ASSERT_OK(cluster.CreateTable(Config()));
  std::string newest, same;
  for (uint64_t step = 1; step <= 6; ++step) {
    Train(cluster, "user", step);
    TANDEM_ASSERT_OK_AND_ASSIGN(newest, Save(cluster, dir.path(), step, /*base=*/step - 1));
    EXPECT_EQ(Deltas(newest), step == 1 ? 0 : 2);
    // A checkpoint of someone else changes nothing.
    TANDEM_ASSERT_OK_AND_ASSIGN(same, Save(cluster, complete.path(), step, 0, /*remember=*/false));
    EXPECT_EQ(DigestOf(newest), DigestOf(same));
  }
  for (const uint32_t servers : {1u, 2u, 3u}) {
    Cluster other(servers);
    TANDEM_ASSERT_OK(other.CreateTable(Config()));
    TANDEM_ASSERT_OK(Load(other, newest));
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string again, Save(other, complete.path(), 100 + servers));
    EXPECT_EQ(DigestOf(again), DigestOf(same));
    // The first after loading is complete, whatever the caller asks for.
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string next, Save(other, dir.path(), 100 + servers, /*base=*/6));
    EXPECT_EQ(Deltas(next), 0);
  }
}

TEST(IncrementalCheckpoint, FilesAreCompleteWhereTheServerKnowsNoMomentBefore) {
  const TempDir dir;
  Cluster cluster(1);
  TANDEM_ASSERT_OK(cluster.CreateTable(Config()));
  Train(cluster, "user", 1);
  TANDEM_ASSERT_OK(Save(cluster, dir.path(), 1));
  // This one is not committed: the next builds on the one before it, which the server no longer knows.
  Train(cluster, "user", 2);
  EXPECT_FALSE(Save(cluster, dir.path(), 2, 1, true, /*commit=*/false).ok());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string third, Save(cluster, dir.path(), 3, 1));
  EXPECT_EQ(Deltas(third), 0);
  // A new table is complete beside one that is not.
  TANDEM_ASSERT_OK(cluster.CreateTable(Config("z")));
  Train(cluster, "z", 3);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string fourth, Save(cluster, dir.path(), 4, 3));
  EXPECT_EQ(Deltas(fourth), 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string fifth, Save(cluster, dir.path(), 5, 4));
  EXPECT_EQ(Deltas(fifth), 2);
  // A checkpoint does not build on itself.
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string again, Save(cluster, dir.path(), 5, 5));
  EXPECT_EQ(Deltas(again), 0);
  TANDEM_ASSERT_OK(Load(cluster, fourth));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string loaded, Save(cluster, dir.path(), 6, 5));
  EXPECT_EQ(Deltas(loaded), 0);
}

TEST(IncrementalCheckpoint, ARunDoesNotBuildOnTheCheckpointOfAnother) {
  const TempDir first, second;
  Cluster cluster(1);
  TANDEM_ASSERT_OK(cluster.CreateTable(Config()));
  Train(cluster, "user", 1);
  TANDEM_ASSERT_OK(Save(cluster, first.path(), 1));
  TANDEM_ASSERT_OK(Save(cluster, second.path(), 1));  // of the same name
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string one, Save(cluster, first.path(), 2, 1));
  EXPECT_EQ(Deltas(one), 0);
  TANDEM_ASSERT_OK(RemoveCheckpoint(one));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string two, Save(cluster, first.path(), 3, 2));
  EXPECT_EQ(Deltas(two), 0);
}

TEST(IncrementalCheckpoint, EvictionsAndAdmissionAreInTheChain) {
  const TempDir dir, complete;
  Cluster cluster(2);
  v1::TableConfig config = Config();
  *config.mutable_eviction() = EvictAfter(4);
  *config.mutable_admission() = AdmitAfter(2, 5000);
  TANDEM_ASSERT_OK(cluster.CreateTable(config));
  std::string newest;
  for (uint64_t step = 1; step <= 8; ++step) {
    for (uint64_t i = 0; i < 40; ++i) Train(cluster, "user", step * 1000 + i % 30 + i / 30 * 15);
    TANDEM_ASSERT_OK_AND_ASSIGN(newest, Save(cluster, dir.path(), step, step - 1));
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string same,
                                Save(cluster, complete.path(), step, 0, /*remember=*/false));
    ASSERT_EQ(DigestOf(newest), DigestOf(same)) << step;
  }
  // The counters: the clusters admit the same ids from now on.
  Cluster restored(2);
  TANDEM_ASSERT_OK(restored.CreateTable(config));
  TANDEM_ASSERT_OK(Load(restored, newest));
  for (uint64_t i = 0; i < 30; ++i) {
    Train(cluster, "user", 90000 + i);
    Train(restored, "user", 90000 + i);
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string one, Save(cluster, complete.path(), 20, 0, false));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string two, Save(restored, complete.path(), 21, 0, false));
  EXPECT_EQ(DigestOf(one), DigestOf(two));
}

TEST(IncrementalCheckpoint, ABrokenChainLoadsNothing) {
  const TempDir dir;
  Cluster cluster(1);
  TANDEM_ASSERT_OK(cluster.CreateTable(Config()));
  for (uint64_t step = 1; step <= 3; ++step) {
    Train(cluster, "user", step);
    TANDEM_ASSERT_OK(Save(cluster, dir.path(), step, step - 1));
  }
  const uint64_t rows = cluster.server(0).Table("user").statistics().rows();
  TANDEM_ASSERT_OK(RemoveCheckpoint(dir.File(CheckpointName(1))));
  EXPECT_THAT(Load(cluster, dir.File(CheckpointName(3))),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr(CheckpointName(2)), HasSubstr(CheckpointName(1)))));
  EXPECT_EQ(cluster.server(0).Table("user").statistics().rows(), rows);
}

TEST(IncrementalCheckpoint, BasesAreFoundBelowTheCheckpointRoot) {
  const TempDir dir;
  ParameterServerOptions options;
  options.checkpoint_root = dir.path();
  Cluster cluster(1, options);
  TANDEM_ASSERT_OK(cluster.CreateTable(Config()));
  std::string newest;
  for (uint64_t step = 1; step <= 3; ++step) {
    Train(cluster, "user", step);
    TANDEM_ASSERT_OK_AND_ASSIGN(newest, Save(cluster, dir.path(), step, step - 1));
  }
  EXPECT_EQ(Deltas(newest), 1);
  const uint64_t rows = cluster.server(0).Table("user").statistics().rows();
  Cluster other(1, options);
  TANDEM_ASSERT_OK(other.CreateTable(Config()));
  TANDEM_ASSERT_OK(Load(other, newest));
  EXPECT_EQ(other.server(0).Table("user").statistics().rows(), rows);
}

}  // namespace
}  // namespace tandem::ps::testing
