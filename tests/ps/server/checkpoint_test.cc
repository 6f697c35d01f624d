// SPDX-License-Identifier: Apache-2.0
// Checkpoints of servers: they load onto any number of servers, completely or not at all, and the job goes on
// as if it had not stopped.

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
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
constexpr uint32_t kWorkers = 2;

std::vector<uint64_t> AllIds() {
  std::vector<uint64_t> ids;
  for (uint64_t id = 0; id < 200; ++id) ids.push_back(id * 7919);
  return ids;
}

// Runs the steps [first, last) of all workers, whose processes have this epoch. Returns every row they
// pulled.
std::vector<float> Train(Cluster& cluster, uint64_t first, uint64_t last, uint64_t epoch) {
  std::vector<float> seen;
  for (uint64_t step = first; step < last; ++step) {
    for (uint32_t w = 0; w < kWorkers; ++w) {
      CounterRandom random(w, step);
      PushOf push{.table = "user", .dim = kDim};
      for (int i = 0; i < 20; ++i) push.ids.push_back(random.Below(200) * 7919);
      absl::StatusOr<std::vector<float>> rows = cluster.Pull(w, step, "user", kDim, push.ids);
      EXPECT_TRUE(rows.ok()) << rows.status();
      if (!rows.ok()) return seen;
      seen.insert(seen.end(), rows->begin(), rows->end());
      for (float row : *rows) push.gradients.push_back(row + static_cast<float>(random.Normal()));
      const auto pushed = cluster.Push(
          {.worker = w, .step = step, .sequence = step - (epoch - 1) * first + 1, .epoch = epoch}, push);
      EXPECT_TRUE(pushed.ok()) << pushed.status();
    }
  }
  return seen;
}

absl::StatusOr<std::string> Save(Cluster& cluster, const std::string& root, uint64_t step) {
  TANDEM_ASSIGN_OR_RETURN(const std::string unfinished, BeginCheckpoint(root, step));
  std::vector<v1::SavedFile> written;
  for (size_t s = 0; s < cluster.size(); ++s) {
    TANDEM_ASSIGN_OR_RETURN(const v1::SaveCheckpointResponse saved, cluster.server(s).Save(unfinished));
    written.insert(written.end(), saved.written().begin(), saved.written().end());
  }
  return CommitCheckpoint(unfinished, {}, written);
}

absl::StatusOr<uint64_t> Load(Cluster& cluster, const std::string& path) {
  uint64_t rows = 0;
  for (size_t s = 0; s < cluster.size(); ++s) {
    TANDEM_ASSIGN_OR_RETURN(const v1::LoadCheckpointResponse loaded, cluster.server(s).Load(path));
    rows += loaded.rows();
  }
  return rows;
}

uint64_t RowCount(Cluster& cluster) {
  uint64_t rows = 0;
  for (size_t s = 0; s < cluster.size(); ++s) rows += cluster.server(s).Table("user").statistics().rows();
  return rows;
}

v1::TableConfig BiasTable() {
  v1::TableConfig bias = DenseTable("bias", 100, Adam(0.1f), Normal(0, 1));
  bias.set_dim(4);
  bias.set_num_workers(kWorkers);
  *bias.mutable_update_mode() = Async();
  return bias;
}

TEST(ServerCheckpoint, GoesOnWithTheSameBitsOnAnyNumberOfServers) {
  const std::vector<v1::OptimizerConfig> optimizers = {
      Sgd(0.1f),  Momentum(0.1f), Adagrad(0.1f), RowwiseAdagrad(0.1f),
      Adam(0.1f), AdamW(0.1f),    AmsGrad(0.1f), Ftrl(0.1f)};
  for (const v1::OptimizerConfig& optimizer : optimizers) {
    SCOPED_TRACE(optimizer.kind());
    const TempDir dir;
    const v1::TableConfig config = TestTable("user", kDim, kWorkers, Sync(), optimizer);
    Cluster unbroken(2);
    TANDEM_ASSERT_OK(unbroken.CreateTable(config));
    TANDEM_ASSERT_OK(unbroken.CreateTable(BiasTable()));
    Train(unbroken, 0, 5, 1);
    const std::vector<float> bias_gradient(4, 1.0f);
    TANDEM_ASSERT_OK(unbroken.Push({.step = 0, .sequence = 6}, {"bias", 4, {7}, bias_gradient}));
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string path, Save(unbroken, dir.path(), 5));
    TANDEM_ASSERT_OK(VerifyCheckpoint(path));
    const uint64_t rows = RowCount(unbroken);
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<float> at_save,
                                unbroken.Pull(0, 5, "user", kDim, AllIds(), /*read_only=*/true));
    const std::vector<float> rest = Train(unbroken, 5, 9, 2);
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<float> at_end,
                                unbroken.Pull(0, 9, "user", kDim, AllIds(), /*read_only=*/true));
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<float> bias, unbroken.Pull(0, 9, "bias", 4, {7, 8}, true));
    for (uint32_t servers : {1, 2, 3, 4}) {
      SCOPED_TRACE(absl::StrCat(servers, " servers"));
      Cluster resumed(servers);
      TANDEM_ASSERT_OK(resumed.CreateTable(config));
      TANDEM_ASSERT_OK(resumed.CreateTable(BiasTable()));
      TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t loaded, Load(resumed, path));
      EXPECT_EQ(loaded, rows + 25);
      EXPECT_EQ(RowCount(resumed), rows);
      EXPECT_EQ(*resumed.Pull(0, 5, "user", kDim, AllIds(), true), at_save);
      EXPECT_EQ(*resumed.Pull(0, 9, "bias", 4, {7, 8}, true), bias);
      EXPECT_EQ(resumed.server(0).Table("user").statistics().version(), 5);
      EXPECT_EQ(Train(resumed, 5, 9, 2), rest);
      EXPECT_EQ(*resumed.Pull(0, 9, "user", kDim, AllIds(), true), at_end);
    }
  }
}

TEST(ServerCheckpoint, GoesOnWithTheSameDecisionsOnAnyNumberOfServers) {
  std::vector<v1::TableConfig> configs(4, TestTable("user", kDim, kWorkers, Sync(), Adagrad(0.1f)));
  configs[0].set_row_type(v1::TableConfig::F16);
  configs[0].set_stochastic_rounding(true);
  *configs[1].mutable_admission() = AdmitAfter(3, 100000);
  configs[1].set_row_type(v1::TableConfig::BF16);
  *configs[2].mutable_eviction() = EvictAfter(2);
  *configs[2].mutable_admission() = AdmitWithProbability(0.5f);
  *configs[3].mutable_eviction() = EvictLfu();
  configs[3].set_byte_budget(64 << 10);
  configs[3].mutable_optimizer()->set_warmup_updates(7);
  configs[3].mutable_optimizer()->set_clip_row_norm(1.0f);
  for (const v1::TableConfig& config : configs) {
    SCOPED_TRACE(config.ShortDebugString());
    const TempDir dir;
    Cluster unbroken(2);
    TANDEM_ASSERT_OK(unbroken.CreateTable(config));
    Train(unbroken, 0, 5, 1);
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string path, Save(unbroken, dir.path(), 5));
    const uint64_t rows = RowCount(unbroken);
    EXPECT_GT(rows, 0);
    const std::vector<float> rest = Train(unbroken, 5, 9, 2);
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<float> at_end,
                                unbroken.Pull(0, 9, "user", kDim, AllIds(), /*read_only=*/true));
    for (uint32_t servers : {1, 2, 4}) {
      SCOPED_TRACE(absl::StrCat(servers, " servers"));
      Cluster resumed(servers);
      TANDEM_ASSERT_OK(resumed.CreateTable(config));
      TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t loaded, Load(resumed, path));
      EXPECT_EQ(loaded, rows);
      EXPECT_EQ(Train(resumed, 5, 9, 2), rest);
      EXPECT_EQ(*resumed.Pull(0, 9, "user", kDim, AllIds(), true), at_end);
      EXPECT_EQ(RowCount(resumed), RowCount(unbroken));
    }
    v1::TableConfig other = config;
    other.set_row_type(config.row_type() == v1::TableConfig::F32 ? v1::TableConfig::F16
                                                                 : v1::TableConfig::F32);
    other.set_stochastic_rounding(false);
    Cluster refuses(1);
    TANDEM_ASSERT_OK(refuses.CreateTable(other));
    EXPECT_THAT(refuses.server(0).Load(path),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("was saved with row_type")));
  }
}

TEST(ServerCheckpoint, WritesTheSameBytesForTheSameRows) {
  const TempDir dir;
  for (const char* run : {"a", "b"}) {
    Cluster cluster(2);
    TANDEM_ASSERT_OK(cluster.CreateTable(TestTable("user", kDim, kWorkers, Sync())));
    Train(cluster, 0, 4, 1);
    TANDEM_ASSERT_OK(Save(cluster, dir.File(run), 4));
  }
  for (const char* file : {"user.0-of-2.table", "user.1-of-2.table"}) {
    const std::string name = absl::StrCat("/step-000000000004/", file);
    EXPECT_EQ(*ReadFile(dir.File("a") + name), *ReadFile(dir.File("b") + name));
  }
}

TEST(ServerCheckpoint, RestoresFencesSoThatAReplayedPushIsNotAppliedTwice) {
  const TempDir dir;
  Cluster cluster(1);
  TANDEM_ASSERT_OK(cluster.CreateTable(TestTable("user", kDim, kWorkers, Sync())));
  Train(cluster, 0, 3, 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string path, Save(cluster, dir.path(), 3));
  Cluster same(1);
  Cluster other(2);
  for (Cluster* resumed : {&same, &other}) {
    TANDEM_ASSERT_OK(resumed->CreateTable(TestTable("user", kDim, kWorkers, Sync())));
    TANDEM_ASSERT_OK(Load(*resumed, path));
  }
  const PushOf empty{"user", kDim, {}, {}};
  EXPECT_TRUE(same.server(0).Push({.worker = 0, .step = 2}, {empty})->duplicate());
  EXPECT_FALSE(same.server(0).Push({.worker = 0, .step = 3}, {empty})->duplicate());
  // The steps before the checkpoint's are refused, those after it are accepted.
  EXPECT_THAT(same.server(0).Push({.worker = 0, .step = 1, .sequence = 9}, {empty}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("next is step 4")));
  // Sequences count the pushes to one server. On other servers only a new epoch is sure not to repeat one.
  EXPECT_THAT(other.server(1).Push({.worker = 0, .step = 3}, {empty}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("epoch above 1")));
  TANDEM_EXPECT_OK(other.server(1).Push({.worker = 0, .step = 3, .sequence = 1, .epoch = 2}, {empty}));
}

TEST(ServerCheckpoint, ALiveServerGoesBackToAnEarlierCheckpoint) {
  const TempDir dir;
  Cluster cluster(2);
  TANDEM_ASSERT_OK(cluster.CreateTable(TestTable("user", kDim, kWorkers, Sync())));
  Train(cluster, 0, 3, 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string path, Save(cluster, dir.path(), 3));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<float> then,
                              cluster.Pull(0, 3, "user", kDim, AllIds(), true));
  Train(cluster, 3, 6, 1);
  TANDEM_ASSERT_OK(Load(cluster, path));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<float> now, cluster.Pull(0, 3, "user", kDim, AllIds(), true));
  EXPECT_EQ(now, then);
}

TEST(ServerCheckpoint, AnotherNumberOfWorkersAllStartWhereTheForemostWas) {
  const TempDir dir;
  Cluster cluster(1);
  TANDEM_ASSERT_OK(cluster.CreateTable(TestTable("user", kDim, kWorkers, Sync())));
  Train(cluster, 0, 3, 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string path, Save(cluster, dir.path(), 3));
  Cluster resumed(1);
  TANDEM_ASSERT_OK(resumed.CreateTable(TestTable("user", kDim, 5, Sync())));
  TANDEM_ASSERT_OK(Load(resumed, path));
  for (uint32_t w = 0; w < 5; ++w) {
    TANDEM_EXPECT_OK(
        resumed.Push({.worker = w, .step = 3, .sequence = 1, .epoch = 2}, {"user", kDim, {}, {}}));
  }
  TANDEM_EXPECT_OK(resumed.Pull(0, 4, "user", kDim, {1}));
}

TEST(ServerCheckpoint, AServerWithoutTablesTakesThemFromTheCheckpoint) {
  const TempDir dir;
  Cluster cluster(1);
  TANDEM_ASSERT_OK(cluster.CreateTable(TestTable("user", kDim, kWorkers, Sync())));
  Train(cluster, 0, 3, 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string path, Save(cluster, dir.path(), 3));
  Cluster fresh(2);
  TANDEM_ASSERT_OK(Load(fresh, path));
  EXPECT_EQ(*fresh.Pull(0, 3, "user", kDim, AllIds(), true),
            *cluster.Pull(0, 3, "user", kDim, AllIds(), true));
}

TEST(ServerCheckpoint, RefusesToSaveAcknowledgedPushesThatAreNotInTheRows) {
  const TempDir dir;
  Cluster cluster(1);
  TANDEM_ASSERT_OK(cluster.CreateTable(TestTable("user", kDim, kWorkers, Sync())));
  TANDEM_ASSERT_OK(cluster.Push({.worker = 1, .step = 0}, {"user", kDim, {}, {}}));
  EXPECT_THAT(
      cluster.server(0).Save(dir.path()),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("'user'"), HasSubstr("push of step 0 from worker 1"), HasSubstr("barrier"))));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  EXPECT_THAT(cluster.server(0).Save(dir.File("nowhere")), StatusIs(absl::StatusCode::kNotFound));
}

TEST(ServerCheckpoint, PushesDuringASaveWaitAndTheCheckpointIsOfOneInstant) {
  // Two tables get the same pushes; a checkpoint between two pushes has both at the same version.
  const TempDir dir;
  Driver driver;
  for (const char* name : {"a", "b"}) TANDEM_ASSERT_OK(driver.CreateTable(TestTable(name, 1, 1, Async())));
  std::vector<uint64_t> ids(2000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"a", ids}, {"b", ids}}));
  std::atomic<bool> stop{false};
  std::thread pusher([&] {
    const std::vector<float> gradients(ids.size(), 1.0f);
    for (uint64_t step = 0; !stop; ++step) {
      const auto pushed = driver.Push({.step = step}, {{"a", 1, ids, gradients}, {"b", 1, ids, gradients}});
      TANDEM_CHECK_MSG(pushed.ok() && !pushed->duplicate(), pushed.status().ToString());
    }
  });
  for (uint64_t save = 0; save < 5; ++save) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, BeginCheckpoint(dir.path(), save));
    TANDEM_ASSERT_OK(driver.Save(unfinished));
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string path, CommitCheckpoint(unfinished, {}));
    Driver reader;
    TANDEM_ASSERT_OK(reader.Load(path));
    EXPECT_EQ(reader.Table("a").statistics().version(), reader.Table("b").statistics().version());
    const absl::StatusOr<Rows> a = reader.Pull(0, 0, {{"a", ids}, {"b", ids}}, true);
    TANDEM_ASSERT_OK(a);
    EXPECT_EQ(a->slices[0], a->slices[1]);  // same seed, same gradients, same number of them
  }
  stop = true;
  pusher.join();
}

class DamagedCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster_ = std::make_unique<Cluster>(2);
    TANDEM_ASSERT_OK(cluster_->CreateTable(TestTable("user", kDim, kWorkers, Sync())));
    Train(*cluster_, 0, 2, 1);
    TANDEM_ASSERT_OK_AND_ASSIGN(path_, Save(*cluster_, dir_.path(), 2));
    TANDEM_ASSERT_OK_AND_ASSIGN(before_, cluster_->Pull(0, 2, "user", kDim, AllIds(), true));
  }
  // Neither server may load it, and no table may change.
  void ExpectRefused(absl::StatusCode code, const std::string& text) {
    TANDEM_ASSERT_OK(cluster_->Push({.worker = 0, .step = 2}, {"user", kDim, {}, {}}));
    EXPECT_THAT(cluster_->server(0).Load(path_), StatusIs(code, HasSubstr(text)));
    TANDEM_ASSERT_OK(cluster_->Push({.worker = 1, .step = 2}, {"user", kDim, {}, {}}));
    EXPECT_EQ(*cluster_->Pull(0, 3, "user", kDim, AllIds(), true), before_);
    EXPECT_EQ(cluster_->server(0).Table("user").statistics().version(), 3);
  }
  const TempDir dir_;
  std::unique_ptr<Cluster> cluster_;
  std::string path_;
  std::vector<float> before_;
};

TEST_F(DamagedCheckpoint, AMissingFileIsNamed) {
  std::filesystem::remove(path_ + "/user.1-of-2.table");
  ExpectRefused(absl::StatusCode::kNotFound, "user.1-of-2.table");
}

TEST_F(DamagedCheckpoint, ACutFileIsNamed) {
  std::filesystem::resize_file(path_ + "/user.0-of-2.table", 1000);
  ExpectRefused(absl::StatusCode::kDataLoss, "user.0-of-2.table");
}

TEST_F(DamagedCheckpoint, AnIntactFileOfAnotherSaveIsNotTheOneOfTheManifest) {
  // Another checkpoint with the same clock and the same sizes, of other rows.
  const std::string file = "/user.1-of-2.table";
  std::string theirs;
  v1::TableConfig config = TestTable("user", kDim, kWorkers, Sync());
  // The footer's size depends on the values of the CRCs.
  for (uint64_t seed = 8; theirs.empty() && seed < 100; ++seed) {
    Cluster other(2);
    config.set_seed(seed);
    TANDEM_ASSERT_OK(other.CreateTable(config));
    Train(other, 0, 2, 1);
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string saved, Save(other, dir_.File("other"), 2));
    if (std::filesystem::file_size(saved + file) == std::filesystem::file_size(path_ + file)) theirs = saved;
  }
  ASSERT_NE(theirs, "");
  std::filesystem::copy_file(theirs + file, path_ + file, std::filesystem::copy_options::overwrite_existing);
  ExpectRefused(absl::StatusCode::kDataLoss, "is not the file that the manifest lists");
}

TEST_F(DamagedCheckpoint, AFlippedBitInARowIsFoundBeforeATableChanges) {
  std::fstream file(path_ + "/user.0-of-2.table", std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(2000);
  const char byte = static_cast<char>(file.get() ^ 4);
  file.seekp(2000);
  file.put(byte);
  file.close();
  ExpectRefused(absl::StatusCode::kDataLoss, "user.0-of-2.table");
}

TEST_F(DamagedCheckpoint, AnUnfinishedDirectoryIsNoCheckpoint) {
  std::filesystem::remove(path_ + "/MANIFEST");
  ExpectRefused(absl::StatusCode::kNotFound, "is not a checkpoint");
}

TEST_F(DamagedCheckpoint, ATableOfAnotherShapeOrOptimizerIsRefused) {
  Cluster wide(1);
  TANDEM_ASSERT_OK(wide.CreateTable(TestTable("user", kDim + 1, kWorkers, Sync())));
  EXPECT_THAT(wide.server(0).Load(path_),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("dim 3"), HasSubstr("has 4"))));
  Cluster adam(1);
  TANDEM_ASSERT_OK(adam.CreateTable(TestTable("user", kDim, kWorkers, Sync(), Adam(0.1f))));
  EXPECT_THAT(adam.server(0).Load(path_),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("adagrad"), HasSubstr("adam"))));
  Cluster more(1);
  TANDEM_ASSERT_OK(more.CreateTable(TestTable("user", kDim, kWorkers, Sync())));
  TANDEM_ASSERT_OK(more.CreateTable(TestTable("item", kDim, kWorkers, Sync())));
  EXPECT_THAT(more.server(0).Load(path_),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("'item'"), HasSubstr("user"))));
  EXPECT_EQ(RowCount(more), 0);
}

}  // namespace
}  // namespace tandem::ps::testing
