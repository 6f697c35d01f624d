// SPDX-License-Identifier: Apache-2.0
#include "ps/client/client.h"

#include <atomic>
#include <cmath>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/table.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::PsCluster;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

v1::TableConfig AsyncTable(const std::string& name, uint32_t dim) {
  v1::TableConfig config = EmbeddingTable(name, dim, Sgd(1.0f), Constant(0.5f));
  *config.mutable_update_mode() = Async();
  config.set_num_workers(1);
  return config;
}

class ClientTest : public ::testing::TestWithParam<int> {};

// The model: a map from (table, id) to a row that starts at 0.5 and from which every gradient is subtracted
// once.
TEST_P(ClientTest, RowsAreWhatAMapWouldHoldWhateverTheNumberOfServers) {
  PsCluster cluster(GetParam());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK(client->CreateTable(AsyncTable("a", 3)));
  TANDEM_ASSERT_OK(client->CreateTable(AsyncTable("b", 1)));
  std::map<std::pair<std::string, uint64_t>, std::vector<float>> model;
  CounterRandom random(7, 0);
  for (uint64_t step = 0; step < 30; ++step) {
    std::vector<uint64_t> a(random.Below(50)), b(random.Below(50));
    for (uint64_t& id : a) id = random.Below(40);  // ids may repeat
    for (uint64_t& id : b) id = random.Below(40);
    std::vector<float> rows_a(a.size() * 3, -1), rows_b(b.size(), -1);
    TANDEM_ASSERT_OK_AND_ASSIGN(PullVersions versions,
                                client->Pull(step, false,
                                             {{.table = "a", .ids = a, .rows = rows_a.data()},
                                              {.table = "b", .ids = b, .rows = rows_b.data()}}));
    ASSERT_EQ(versions.size(), 2u);
    ASSERT_EQ(versions[0].size(), static_cast<size_t>(GetParam()));
    auto row = [&](const std::string& table, uint64_t id, size_t dim) -> std::vector<float>& {
      return model.try_emplace({table, id}, std::vector<float>(dim, 0.5f)).first->second;
    };
    for (size_t i = 0; i < a.size(); ++i) {
      for (int d = 0; d < 3; ++d) ASSERT_EQ(rows_a[i * 3 + d], row("a", a[i], 3)[d]) << "step " << step;
    }
    for (size_t i = 0; i < b.size(); ++i) ASSERT_EQ(rows_b[i], row("b", b[i], 1)[0]) << "step " << step;
    // Multiples of 1/8: sums are exact in any order.
    std::vector<float> grad_a(rows_a.size()), grad_b(rows_b.size());
    for (float& g : grad_a) g = static_cast<float>(random.Below(16)) / 8 - 1;
    for (float& g : grad_b) g = static_cast<float>(random.Below(16)) / 8 - 1;
    TANDEM_ASSERT_OK(client->Push(step, {{.table = "a", .ids = a, .gradients = grad_a.data()},
                                         {.table = "b", .ids = b, .gradients = grad_b.data()}}));
    for (size_t i = 0; i < a.size(); ++i) {
      for (int d = 0; d < 3; ++d) row("a", a[i], 3)[d] -= grad_a[i * 3 + d];
    }
    for (size_t i = 0; i < b.size(); ++i) row("b", b[i], 1)[0] -= grad_b[i];
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(auto tables, client->ListTables());
  uint64_t rows = 0;
  for (const v1::TableInfo& table : tables) rows += table.statistics().rows();
  EXPECT_EQ(rows, model.size());
}

TEST_P(ClientTest, OpensTablesThatAnotherClientHasCreated) {
  PsCluster cluster(GetParam());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto creator, cluster.Connect());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto reader, cluster.Connect());
  TANDEM_ASSERT_OK(creator->CreateTable(AsyncTable("a", 3)));
  const std::vector<uint64_t> ids = {1};
  std::vector<float> rows(3);
  const std::vector<PullPart> parts = {{.table = "a", .ids = ids, .rows = rows.data()}};
  EXPECT_THAT(reader->Pull(0, true, parts), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(reader->OpenTable("b"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no table 'b'; it has: a")));
  TANDEM_ASSERT_OK(reader->OpenTable("a"));
  TANDEM_ASSERT_OK(reader->Pull(0, true, parts));
  EXPECT_THAT(rows, ::testing::Each(0.5f));
}

TEST_P(ClientTest, PoolsBagsThatLieOnSeveralServers) {
  PsCluster cluster(GetParam());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK(client->CreateTable(AsyncTable("t", 2)));
  std::vector<uint64_t> ids = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> gradients(16);
  for (size_t i = 0; i < 16; ++i) gradients[i] = 0.5f - static_cast<float>(i);  // row i becomes {2i, 2i + 1}
  std::vector<float> rows(16);
  TANDEM_ASSERT_OK(client->Pull(0, false, {{.table = "t", .ids = ids, .rows = rows.data()}}));
  TANDEM_ASSERT_OK(client->Push(0, {{.table = "t", .ids = ids, .gradients = gradients.data()}}));

  const std::vector<uint32_t> offsets = {0, 3, 3, 8};
  std::vector<float> pooled(6, -1);
  TANDEM_ASSERT_OK(client->Pull(
      1, true, {{.table = "t", .ids = ids, .rows = pooled.data(), .pooling = v1::SUM, .offsets = offsets}}));
  EXPECT_THAT(pooled,
              ::testing::ElementsAre(0 + 2 + 4, 1 + 3 + 5, 0, 0, 6 + 8 + 10 + 12 + 14, 7 + 9 + 11 + 13 + 15));
  TANDEM_ASSERT_OK(client->Pull(
      1, true, {{.table = "t", .ids = ids, .rows = pooled.data(), .pooling = v1::MEAN, .offsets = offsets}}));
  EXPECT_THAT(pooled,
              ::testing::Pointwise(::testing::FloatNear(1e-5f), {2.0f, 3.0f, 0.0f, 0.0f, 10.0f, 11.0f}));

  // The gradient of a bag is applied to each of its rows; for a mean it is divided by the size of the whole
  // bag.
  const std::vector<float> bag_gradients = {3, 3, 100, 100, 5, 5};
  TANDEM_ASSERT_OK(client->Push(1, {{.table = "t",
                                     .ids = ids,
                                     .gradients = bag_gradients.data(),
                                     .pooling = v1::MEAN,
                                     .offsets = offsets}}));
  TANDEM_ASSERT_OK(client->Pull(2, true, {{.table = "t", .ids = ids, .rows = rows.data()}}));
  for (size_t i = 0; i < 16; ++i) EXPECT_FLOAT_EQ(rows[i], static_cast<float>(i) - 1) << i;
}

TEST_P(ClientTest, DenseTablesAreOneArray) {
  PsCluster cluster(GetParam());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  v1::TableConfig config = DenseTable("d", 2500, Sgd(1.0f), Constant(1.0f));
  *config.mutable_update_mode() = Async();
  config.set_num_workers(1);
  TANDEM_ASSERT_OK(client->CreateTable(config));
  std::vector<float> values(2500), gradients(2500);
  TANDEM_ASSERT_OK(client->PullDense("d", 0, absl::MakeSpan(values)));
  EXPECT_THAT(values, ::testing::Each(1.0f));
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>(i);
  TANDEM_ASSERT_OK(client->PushDense("d", 0, gradients));
  TANDEM_ASSERT_OK(client->PullDense("d", 1, absl::MakeSpan(values)));
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], 1.0f - static_cast<float>(i));
  EXPECT_THAT(client->PullDense("d", 1, absl::MakeSpan(values).subspan(1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2500 elements; the array has 2499")));
}

TEST_P(ClientTest, APushIsAppliedOnceThoughConnectionsFailAndDuplicate) {
  PsCluster cluster(GetParam());
  std::atomic<int> faults{0};
  auto injector = [&](absl::string_view method, int64_t) -> rpc::Fault {
    if (!absl::StrContains(method, "Push") && !absl::StrContains(method, "Pull")) return {};
    switch (faults++ % 5) {
      case 0:
        return {.kind = rpc::Fault::Kind::kFailBefore};
      case 1:
        return {.kind = rpc::Fault::Kind::kFailAfter};
      case 2:
        return {.kind = rpc::Fault::Kind::kDuplicate};
      default:
        return {};
    }
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect(0, injector));
  TANDEM_ASSERT_OK(client->CreateTable(AsyncTable("t", 1)));
  const std::vector<uint64_t> ids = {10, 20, 30, 40};
  const std::vector<float> ones(4, 1.0f);
  std::vector<float> rows(4);
  for (uint64_t step = 0; step < 8; ++step) {
    TANDEM_ASSERT_OK(client->Pull(step, false, {{.table = "t", .ids = ids, .rows = rows.data()}}));
    for (const float row : rows) ASSERT_EQ(row, 0.5f - static_cast<float>(step));
    TANDEM_ASSERT_OK(client->Push(step, {{.table = "t", .ids = ids, .gradients = ones.data()}}));
  }
  EXPECT_GE(faults, 16);
}

TEST_P(ClientTest, ACheckpointComesBack) {
  testing::TempDir dir;
  PsCluster cluster(GetParam());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK(client->CreateTable(AsyncTable("t", 1)));
  const std::vector<uint64_t> ids = {1, 2, 3};
  const std::vector<float> gradients = {1, 2, 3};
  std::vector<float> rows(3);
  TANDEM_ASSERT_OK(client->Pull(0, false, {{.table = "t", .ids = ids, .rows = rows.data()}}));
  TANDEM_ASSERT_OK(client->Push(0, {{.table = "t", .ids = ids, .gradients = gradients.data()}}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, BeginCheckpoint(dir.path(), 1));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<v1::SavedFile> files, client->SaveCheckpoint(unfinished));
  EXPECT_EQ(files.size(), static_cast<size_t>(GetParam()));
  TANDEM_ASSERT_OK(client->Push(1, {{.table = "t", .ids = ids, .gradients = gradients.data()}}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string committed, CommitCheckpoint(unfinished, {}));
  TANDEM_ASSERT_OK(client->LoadCheckpoint(committed));
  TANDEM_ASSERT_OK(client->Pull(1, true, {{.table = "t", .ids = ids, .rows = rows.data()}}));
  EXPECT_THAT(rows, ::testing::ElementsAre(-0.5f, -1.5f, -2.5f));
}

TEST_P(ClientTest, ARestartedWorkerGetsAPushEpochFromTheServersAlsoAfterALoad) {
  testing::TempDir dir;
  PsCluster cluster(GetParam());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK(client->CreateTable(AsyncTable("t", 1)));
  const std::vector<uint64_t> ids = {1, 2, 3};
  const std::vector<float> gradients = {1, 2, 3};
  std::vector<float> rows(3);
  TANDEM_ASSERT_OK(client->Pull(0, false, {{.table = "t", .ids = ids, .rows = rows.data()}}));
  const auto push = [&](Client* from, uint64_t step) {
    return from->Push(step, {{.table = "t", .ids = ids, .gradients = gradients.data()}});
  };
  TANDEM_ASSERT_OK(client->StartPushEpoch());
  for (uint64_t step = 0; step < 3; ++step) TANDEM_ASSERT_OK(push(client.get(), step));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, BeginCheckpoint(dir.path(), 1));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<v1::SavedFile> files, client->SaveCheckpoint(unfinished));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string committed, CommitCheckpoint(unfinished, {}, files));
  TANDEM_EXPECT_OK(VerifyCheckpoint(committed));  // reads what the servers have said of their files

  // The worker restarts in a new process, on other servers, which begin where the checkpoint was.
  for (const int servers : {GetParam(), GetParam() + 1}) {
    PsCluster later(servers);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto restarted, later.Connect());
    TANDEM_ASSERT_OK(restarted->CreateTable(AsyncTable("t", 1)));
    TANDEM_ASSERT_OK(restarted->LoadCheckpoint(committed));
    EXPECT_THAT(push(restarted.get(), 3), StatusIs(absl::StatusCode::kFailedPrecondition));
    TANDEM_ASSERT_OK(restarted->StartPushEpoch());
    TANDEM_ASSERT_OK(push(restarted.get(), 3));
    TANDEM_ASSERT_OK(restarted->Pull(4, true, {{.table = "t", .ids = ids, .rows = rows.data()}}));
    EXPECT_THAT(rows, ::testing::ElementsAre(-3.5f, -7.5f, -11.5f));
  }
  // A second process of the worker fences the first one off.
  TANDEM_ASSERT_OK_AND_ASSIGN(auto second, cluster.Connect());
  TANDEM_ASSERT_OK(second->CreateTable(AsyncTable("t", 1)));
  TANDEM_ASSERT_OK(second->StartPushEpoch());
  EXPECT_THAT(push(client.get(), 4),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("still running")));
  TANDEM_ASSERT_OK(push(second.get(), 4));
}

TEST_P(ClientTest, AStartOfAPushEpochThatIsExecutedTwiceFencesNobodyOff) {
  PsCluster cluster(GetParam());
  const auto twice = [](absl::string_view method, int64_t) {
    const bool start = method == "/tandem.v1.ParameterServer/StartPushEpoch";
    return rpc::Fault{.kind = start ? rpc::Fault::Kind::kDuplicate : rpc::Fault::Kind::kNone};
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect(0, twice));
  TANDEM_ASSERT_OK(client->CreateTable(AsyncTable("t", 1)));
  TANDEM_ASSERT_OK(client->StartPushEpoch());
  const std::vector<uint64_t> ids = {1, 2, 3};
  const std::vector<float> gradients = {1, 2, 3};
  TANDEM_EXPECT_OK(client->Push(0, {{.table = "t", .ids = ids, .gradients = gradients.data()}}));
}

INSTANTIATE_TEST_SUITE_P(Servers, ClientTest, ::testing::Values(1, 2, 5));

TEST(ClientTablesTest, ForgetsATableThatAnotherClientHasDropped) {
  PsCluster cluster(2);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto other, cluster.Connect());
  TANDEM_ASSERT_OK(client->CreateTable(AsyncTable("t", 1)));
  TANDEM_ASSERT_OK(other->OpenTable("t"));
  TANDEM_ASSERT_OK(other->DropTable("t"));
  TANDEM_ASSERT_OK(client->CacheStatisticsOf("t").status());
  EXPECT_THAT(client->DropTable("t"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("'t'")));
  EXPECT_THAT(client->CacheStatisticsOf("t").status(), StatusIs(absl::StatusCode::kNotFound));
}

TEST(ClientTablesTest, ATableMayBeDroppedWhileItsOptionsAreSet) {
  PsCluster cluster(1);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  std::atomic<bool> done{false};
  std::thread setter([&] {
    while (!done) {
      for (const absl::Status& status : {client->SetWire("t", {}), client->SetCache("t", {}),
                                         client->SetReadCache("t", {.bytes = 64 << 20})}) {
        if (!status.ok()) EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("'t'")));
      }
    }
  });
  for (int round = 0; round < 300; ++round) {
    TANDEM_EXPECT_OK(client->CreateTable(AsyncTable("t", 1)));
    TANDEM_EXPECT_OK(client->DropTable("t"));
  }
  done = true;
  setter.join();
}

TEST(ClientErrorsTest, NamesWhatIsWrong) {
  PsCluster cluster(2);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK(client->CreateTable(AsyncTable("known", 1)));
  const std::vector<uint64_t> ids = {1, 2};
  std::vector<float> rows(2);
  EXPECT_THAT(client->Pull(0, false, {{.table = "unknown", .ids = ids, .rows = rows.data()}}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no table 'unknown' (it has created: known)")));
  const std::vector<uint32_t> bad_offsets = {0, 3};
  EXPECT_THAT(
      client->Pull(
          0, false,
          {{.table = "known", .ids = ids, .rows = rows.data(), .pooling = v1::SUM, .offsets = bad_offsets}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ascend from 0 to the number of ids, 2")));
  const std::vector<float> nan = {1.0f, std::nanf("")};
  TANDEM_ASSERT_OK(client->Pull(0, false, {{.table = "known", .ids = ids, .rows = rows.data()}}));
  EXPECT_THAT(client->Push(0, {{.table = "known", .ids = ids, .gradients = nan.data()}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("worker 0")));
  v1::TableConfig other = AsyncTable("known", 2);
  EXPECT_THAT(client->CreateTable(other), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("dim")));
  EXPECT_THAT(client->LoadCheckpoint("/nowhere"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere")));
}

TEST(ClientErrorsTest, ServersInTheWrongOrderAreNotAccepted) {
  PsCluster cluster(2);
  std::vector<std::unique_ptr<rpc::Channel>> channels = cluster.Channels();
  std::swap(channels[0], channels[1]);
  EXPECT_THAT(Client::Connect(std::move(channels), {}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("says it is server 1 of 2, expected 0 of 2")));
}

TEST(ClientErrorsTest, ASyncPullThatWaitsInVainNamesTheWorker) {
  PsCluster cluster(1);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect(0, nullptr, absl::Seconds(3)));
  v1::TableConfig config = AsyncTable("t", 1);
  *config.mutable_update_mode() = Sync();
  config.set_num_workers(2);
  TANDEM_ASSERT_OK(client->CreateTable(config));
  const std::vector<uint64_t> ids = {1};
  std::vector<float> rows(1);
  TANDEM_ASSERT_OK(client->Pull(0, false, {{.table = "t", .ids = ids, .rows = rows.data()}}));
  TANDEM_ASSERT_OK(client->Push(0, {{.table = "t", .ids = ids, .gradients = rows.data()}}));
  EXPECT_THAT(client->Pull(1, false, {{.table = "t", .ids = ids, .rows = rows.data()}}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("worker 1")));
}

}  // namespace
}  // namespace tandem::ps
