// SPDX-License-Identifier: Apache-2.0
// A table that is dropped: calls that use it fail by name, nothing of it is left, and it can be created anew.

#include <sys/stat.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "tests/ps/server/cluster.h"
#include "tests/ps/server/count_pushes.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kNoTable = absl::StatusCode::kNotFound;

class DropTable : public ::testing::TestWithParam<v1::UpdateMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, DropTable, ::testing::Values(Sync(), Bounded(2), Async(), Gba(8, 4)));

TEST_P(DropTable, CallsForItFailByNameAndItStartsAnewWithAnyShape) {
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(CountTable(1, Async(), "item")));
  TANDEM_ASSERT_OK(server.CreateTable(CountTable(1, GetParam())));
  TANDEM_ASSERT_OK(server.Push({.step = 0}, {CountPush(0, 0)}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const bool existed, server.DropTable("user"));
  EXPECT_TRUE(existed);
  EXPECT_THAT(server.Pull(0, 0, {{"user", {kShared}}}),
              StatusIs(kNoTable, AllOf(HasSubstr("'user'"), HasSubstr("dropped"), HasSubstr("'item'"))));
  EXPECT_THAT(server.Push({.step = 1}, {CountPush(0, 1)}), StatusIs(kNoTable, HasSubstr("'user'")));
  EXPECT_EQ(server.Table("user").config().name(), "");
  TANDEM_ASSERT_OK_AND_ASSIGN(const bool again, server.DropTable("user"));
  EXPECT_FALSE(again);
  // Anew: from step 0, with another dim.
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("user", 3, 1, GetParam(), Sgd(1))));
  EXPECT_EQ(server.Table("user").statistics().rows(), 0);
  EXPECT_EQ(server.Table("user").statistics().version(), 0);
  TANDEM_ASSERT_OK(server.Push({.step = 0, .sequence = 2}, {{"user", 3, {kShared}, {1, 1, 1}}}));
  TANDEM_EXPECT_OK(server.Pull(0, 0, {{"item", {kShared}}}));
}

TEST(DropTableTest, PullsThatWaitForItsPushesFailAtOnce) {
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(CountTable(2, Sync())));
  TANDEM_ASSERT_OK(server.CreateTable(CountTable(2, Sync(), "item")));
  const auto waits = server.StartPull(0, 1, {{"user", {kShared}}});
  const auto waits_for_both = server.StartPull(0, 1, {{"item", {kShared}}, {"user", {kShared}}});
  const auto waits_for_other = server.StartPull(0, 1, {{"item", {kShared}}});
  // One of two pushes of the step: it was acknowledged, and goes with the table.
  TANDEM_ASSERT_OK(server.Push({.worker = 0}, {CountPush(0, 0)}));
  ASSERT_FALSE(waits->answered());
  TANDEM_ASSERT_OK(server.DropTable("user"));
  EXPECT_THAT(waits->Wait().status(),
              StatusIs(kNoTable, AllOf(HasSubstr("'user'"), HasSubstr("was dropped while"))));
  for (const uint32_t worker : {0, 1}) {
    TANDEM_ASSERT_OK(server.Push({.worker = worker, .sequence = 9}, {{"item", 1, {kShared}, {1}}}));
  }
  EXPECT_THAT(waits_for_both->Wait().status(), StatusIs(kNoTable, HasSubstr("'user'")));
  TANDEM_EXPECT_OK(waits_for_other->Wait().status());
  EXPECT_EQ(server.server().parked_calls(), 0);
}

TEST(DropTableTest, PushesAndPullsUnderWaySucceedOrFailByName) {
  Driver server;
  std::atomic<bool> done{false};
  std::atomic<uint64_t> applied{0};
  std::vector<std::thread> workers;
  for (uint32_t worker = 0; worker < 3; ++worker) {
    workers.emplace_back([&, worker] {
      for (uint64_t step = 0; !done; ++step) {
        const absl::Status pushed =
            server.Push({.worker = worker, .step = step}, {CountPush(worker, step)}).status();
        if (pushed.ok()) {
          ++applied;
        } else {
          EXPECT_THAT(pushed, StatusIs(kNoTable, HasSubstr("'user'")));
        }
        const absl::Status pulled = server.Pull(worker, step, {{"user", {kShared}}}).status();
        if (!pulled.ok()) EXPECT_THAT(pulled, StatusIs(kNoTable, HasSubstr("'user'")));
      }
    });
  }
  for (int round = 0; round < 20; ++round) {
    const uint64_t before = applied;
    TANDEM_EXPECT_OK(server.CreateTable(CountTable(3, Async())));
    while (applied < before + 5) std::this_thread::yield();
    TANDEM_EXPECT_OK(server.DropTable("user"));
  }
  done = true;
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(server.Table("user").config().name(), "");
}

TEST(DropTableTest, ACheckpointThatWasBegunBeforeHasTheTableAndLaterOnesDoNot) {
  const TempDir directory;
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(CountTable(1, Async())));
  TANDEM_ASSERT_OK(server.CreateTable(CountTable(1, Async(), "item")));
  TANDEM_ASSERT_OK(server.Push({.step = 0}, {CountPush(0, 0)}));
  const auto files = [](const absl::StatusOr<v1::SaveCheckpointResponse>& saved) {
    TANDEM_EXPECT_OK(saved.status());
    return saved.ok() ? saved->files_size() : -1;
  };
  TANDEM_ASSERT_OK(server.BeginSave(directory.path()));
  TANDEM_ASSERT_OK(server.DropTable("user"));
  EXPECT_EQ(files(server.FinishSave(directory.path())), 2);
  const TempDir later;
  EXPECT_EQ(files(server.Save(later.path())), 1);
}

TEST(DropTableTest, ACheckpointThatOnlySomeServersBeganBeforeIsNotCommitted) {
  const TempDir root;
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, BeginCheckpoint(root.path(), 7));
  Cluster cluster(2);
  TANDEM_ASSERT_OK(cluster.CreateTable(CountTable(1, Async())));
  TANDEM_ASSERT_OK(cluster.CreateTable(CountTable(1, Async(), "item")));
  TANDEM_ASSERT_OK(cluster.server(0).BeginSave(unfinished));
  for (const size_t s : {0, 1}) TANDEM_ASSERT_OK(cluster.server(s).DropTable("user"));
  TANDEM_ASSERT_OK(cluster.server(1).BeginSave(unfinished));
  for (const size_t s : {0, 1}) TANDEM_ASSERT_OK(cluster.server(s).FinishSave(unfinished));
  EXPECT_THAT(CommitCheckpoint(unfinished, {}),
              StatusIs(absl::StatusCode::kAborted, AllOf(HasSubstr("'user'"), HasSubstr("server 1 of 2"))));
}

TEST(DropTableTest, ATableThatWasCreatedAnewIsSavedWhole) {
  const TempDir root;
  const auto directory = [&](const std::string& name) {
    const std::string path = root.path() + "/" + name;
    EXPECT_EQ(::mkdir(path.c_str(), 0700), 0);
    return path;
  };
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(CountTable(1, Async())));
  TANDEM_ASSERT_OK(server.Push({.step = 0}, {CountPush(0, 0)}));
  TANDEM_ASSERT_OK(server.Save(directory("a"), "a").status());
  TANDEM_ASSERT_OK(server.DropTable("user"));
  TANDEM_ASSERT_OK(server.CreateTable(CountTable(1, Async())));
  TANDEM_ASSERT_OK(server.Push({.step = 1}, {CountPush(0, 1)}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto saved, server.Save(directory("b"), "b", "a"));
  ASSERT_EQ(saved.written_size(), 1);
  EXPECT_EQ(saved.written(0).base(), "");
}

}  // namespace
}  // namespace tandem::ps::testing
