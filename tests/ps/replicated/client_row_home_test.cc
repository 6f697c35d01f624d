// SPDX-License-Identifier: Apache-2.0
#include "ps/replicated/client_row_home.h"

#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/table.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::PsCluster;

constexpr uint32_t kRowDim = 4;
constexpr uint64_t kIds = 40;

v1::TableConfig AsyncTable(const std::string& name, v1::OptimizerConfig optimizer) {
  v1::TableConfig config = EmbeddingTable(name, kRowDim, std::move(optimizer), Normal(0, 0.1f));
  *config.mutable_update_mode() = Async();
  return config;
}

// The ids and gradients of a step.
struct Step {
  std::vector<uint64_t> ids;
  std::vector<float> gradients;
  explicit Step(uint64_t step) {
    CounterRandom random(step, 1);
    for (uint64_t id = 0; id < kIds; ++id) {
      if (random.Below(3) == 0) continue;
      ids.push_back(id);
      for (uint32_t d = 0; d < kRowDim; ++d) gradients.push_back(random.Uniform() - 0.5f);
    }
  }
};

TEST(ClientRowHomeTest, AModeIsSetOnAllServers) {
  PsCluster cluster(3);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK(client->CreateTable(AsyncTable("t", Sgd(0.1f))));
  ClientRowHome home(client.get());
  for (const v1::UpdateMode& mode : {Sync(), Gba(4)}) {
    TANDEM_ASSERT_OK(home.SetMode("t", mode));
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<std::vector<v1::TableInfo>> servers,
                                client->ListTablesPerServer(0));
    ASSERT_EQ(servers.size(), 3u);
    for (const auto& tables : servers) {
      ASSERT_EQ(tables.size(), 1u);
      EXPECT_EQ(FormatUpdateMode(tables[0].config().update_mode()), FormatUpdateMode(mode));
    }
  }
}

// Trains with rows that move to the worker and back at several steps; others stay on the servers.
TEST(ClientRowHomeTest, RowsThatMoveAreTrainedAsThoseThatNeverDid) {
  for (const v1::OptimizerConfig& optimizer :
       {Sgd(0.1f), Adagrad(0.1f), RowwiseAdagrad(0.1f), Adam(0.01f), AmsGrad(0.01f), Ftrl(0.1f, 0.01f)}) {
    PsCluster cluster(3);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
    v1::TableConfig moving = AsyncTable("moving", optimizer), staying = AsyncTable("staying", optimizer);
    TANDEM_ASSERT_OK(client->CreateTable(moving));
    TANDEM_ASSERT_OK(client->CreateTable(staying));
    ClientRowHome home(client.get());
    TANDEM_ASSERT_OK_AND_ASSIGN(auto replicas, ReplicatedTables::Create({{.config = moving}}, {}, &home));
    ReplicatedRows* const rows = replicas->table(0);
    std::vector<float> all(kIds * kRowDim);
    std::vector<uint64_t> ids(kIds);
    for (uint64_t id = 0; id < kIds; ++id) ids[id] = id;
    for (uint64_t step = 0; step < 30; ++step) {
      if (step % 4 == 2) {
        // Every row is replicated at some time, some of them twice.
        std::vector<uint64_t> some;
        for (uint64_t id = 0; id < kIds; ++id) {
          if ((id + step) % 3 == 0) some.push_back(id);
        }
        TANDEM_ASSERT_OK(replicas->WriteBack());
        TANDEM_ASSERT_OK(replicas->Restore({some}));
      }
      const Step now(step);
      // A row is created when it is pulled.
      for (const char* table : {"moving", "staying"}) {
        TANDEM_ASSERT_OK(
            client->Pull(step, false, {{.table = table, .ids = ids, .rows = all.data()}}).status());
      }
      std::vector<uint64_t> pushed_ids;
      std::vector<float> pushed;
      for (size_t i = 0; i < now.ids.size(); ++i) {
        const float* const gradient = now.gradients.data() + i * kRowDim;
        const uint32_t slot = rows->Find(now.ids[i]);
        if (slot != ReplicatedRows::kAbsent) {
          rows->AddGradient(slot, gradient);
        } else {
          pushed_ids.push_back(now.ids[i]);
          pushed.insert(pushed.end(), gradient, gradient + kRowDim);
        }
      }
      TANDEM_ASSERT_OK(replicas->Apply(step, 1.0f));
      TANDEM_ASSERT_OK(
          client->Push(step, {{.table = "moving", .ids = pushed_ids, .gradients = pushed.data()},
                              {.table = "staying", .ids = now.ids, .gradients = now.gradients.data()}}));
    }
    TANDEM_ASSERT_OK(replicas->WriteBack());
    std::vector<float> moved(kIds * kRowDim), stayed(kIds * kRowDim);
    TANDEM_ASSERT_OK(client
                         ->Pull(99, true,
                                {{.table = "moving", .ids = ids, .rows = moved.data()},
                                 {.table = "staying", .ids = ids, .rows = stayed.data()}})
                         .status());
    EXPECT_EQ(moved, stayed) << optimizer.kind();
    TANDEM_ASSERT_OK_AND_ASSIGN(const MovedRows of_moving, home.Read("moving", ids));
    TANDEM_ASSERT_OK_AND_ASSIGN(const MovedRows of_staying, home.Read("staying", ids));
    EXPECT_EQ(of_moving.state, of_staying.state) << optimizer.kind();
  }
}

TEST(ClientRowHomeTest, RowsThatAreInEveryPushAreFoundHot) {
  PsCluster cluster(2);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK(client->CreateTable(AsyncTable("t", Sgd(0.1f))));
  const std::vector<float> gradients(2 * kRowDim, 0.1f);
  std::vector<float> values(2 * kRowDim);
  // Each push is based on a pull of four steps before.
  std::vector<PullVersions> versions;
  for (uint64_t step = 0; step < 60; ++step) {
    const std::vector<uint64_t> ids = {7, 1000 + step};
    TANDEM_ASSERT_OK_AND_ASSIGN(
        PullVersions now, client->Pull(step, false, {{.table = "t", .ids = ids, .rows = values.data()}}));
    versions.push_back(std::move(now));
    const std::vector<uint64_t>& pulled = versions[step < 4 ? 0 : step - 4][0];
    TANDEM_ASSERT_OK(client->Push(
        step, {{.table = "t", .ids = ids, .gradients = gradients.data(), .pulled_versions = pulled}}));
  }
  ClientRowHome home(client.get());
  TANDEM_ASSERT_OK_AND_ASSIGN(const double delay, home.Delay("t"));
  EXPECT_NEAR(delay, 4.0, 0.5);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<HotRow> hot, home.FindHot("t", 1.0, 100));
  ASSERT_EQ(hot.size(), 1u);
  EXPECT_EQ(hot[0].id, 7u);
  EXPECT_NEAR(hot[0].staleness, 4.0, 1.0);
  EXPECT_EQ(home.Delay("u").status().code(), absl::StatusCode::kNotFound);
}

// A row in every push has the delay as its staleness, whether it is measured on the servers or computed.
TEST(ClientRowHomeTest, TheDelayIsThatByWhichTheServersFindHotRows) {
  PsCluster cluster(2);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK(client->CreateTable(AsyncTable("t", Sgd(0.1f))));
  ClientRowHome home(client.get());
  EXPECT_EQ(home.Delay("t").value_or(-1), 0);
  const std::vector<uint64_t> ids = {7};
  const std::vector<float> gradients(kRowDim, 0.1f);
  std::vector<float> values(kRowDim);
  std::vector<PullVersions> versions;
  for (uint64_t step = 0; step < 600; ++step) {
    TANDEM_ASSERT_OK_AND_ASSIGN(
        PullVersions now, client->Pull(step, false, {{.table = "t", .ids = ids, .rows = values.data()}}));
    versions.push_back(std::move(now));
    // The pushes of the second half are late, and every tenth one does not say from which version it comes.
    const absl::Span<const uint64_t> pulled = versions[step < 300 ? step : step - 4][0];
    TANDEM_ASSERT_OK(
        client->Push(step, {{.table = "t",
                             .ids = ids,
                             .gradients = gradients.data(),
                             .pulled_versions = step % 10 == 9 ? absl::Span<const uint64_t>() : pulled}}));
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const double delay, home.Delay("t"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<HotRow> hot, home.FindHot("t", 0.0, 100));
  ASSERT_EQ(hot.size(), 1u);
  EXPECT_NEAR(hot[0].staleness, delay, 1e-9);
}

}  // namespace
}  // namespace tandem::ps
