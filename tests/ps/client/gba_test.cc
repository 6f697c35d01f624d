// SPDX-License-Identifier: Apache-2.0
// Global-batch aggregation through the client: server 0 assigns an update to each push, and the other servers
// use the same grouping.

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/client/client.h"
#include "ps/table.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using tandem::testing::PsCluster;

constexpr uint32_t kServers = 3, kWorkers = 3;

v1::TableConfig SumTable(const v1::UpdateMode& mode) {
  v1::TableConfig config = EmbeddingTable("user", 1, Sgd(1.0f), Zeros());
  config.set_num_workers(kWorkers);
  *config.mutable_update_mode() = mode;
  return config;
}

// Each worker pulls 30 ids, spread over all servers, and pushes 1 for each, `steps` times. `after` runs after
// each push.
void Train(PsCluster& cluster, const v1::TableConfig& config, uint64_t steps, rpc::FaultInjector injector,
           const std::function<void(uint32_t worker, uint64_t step)>& after) {
  std::vector<std::thread> workers;
  for (uint32_t w = 0; w < kWorkers; ++w) {
    workers.emplace_back([&, w] {
      absl::StatusOr<std::unique_ptr<Client>> client = cluster.Connect(w, injector);
      TANDEM_CHECK_MSG(client.ok(), client.status().ToString());
      absl::Status made = (*client)->CreateTable(config);
      TANDEM_CHECK_MSG(made.ok(), made.ToString());
      std::vector<uint64_t> ids(30);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = i * 977;
      std::vector<float> rows(ids.size()), ones(ids.size(), 1.0f);
      for (uint64_t step = 0; step < steps; ++step) {
        auto versions = (*client)->Pull(step, false, {{.table = "user", .ids = ids, .rows = rows.data()}});
        TANDEM_CHECK_MSG(versions.ok(), versions.status().ToString());
        const absl::Status pushed = (*client)->Push(
            step,
            {{.table = "user", .ids = ids, .gradients = ones.data(), .pulled_versions = (*versions)[0]}});
        TANDEM_CHECK_MSG(pushed.ok(), pushed.ToString());
        after(w, step);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
}

TEST(GbaClient, AllServersMakeTheSameUpdates) {
  PsCluster cluster(kServers);
  Train(cluster, SumTable(Gba(/*staleness=*/0, /*global_batch=*/4)), 40, nullptr, [](uint32_t, uint64_t) {});
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto servers, client->ListTablesPerServer(0));
  const uint64_t stale = servers[0][0].statistics().stale_pushes();
  for (const auto& server : servers) {
    EXPECT_EQ(server[0].statistics().version(), kWorkers * 40 / 4);
    EXPECT_EQ(server[0].statistics().stale_pushes(), stale);
    EXPECT_EQ(server[0].statistics().kept_pushes(), 0);
  }
}

TEST(GbaClient, EachIdHasTheSamePushesOnWhicheverServerItLives) {
  PsCluster cluster(kServers);
  const v1::TableConfig config = SumTable(Gba(1, 2));
  Train(cluster, config, 30, nullptr, [](uint32_t, uint64_t) {});
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK(client->CreateTable(config));
  TANDEM_ASSERT_OK(client->Flush("user"));
  std::vector<uint64_t> ids(30);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i * 977;
  std::vector<float> rows(ids.size());
  TANDEM_ASSERT_OK(client->Pull(0, true, {{.table = "user", .ids = ids, .rows = rows.data()}}).status());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto tables, client->ListTables());
  const uint64_t stale = tables[0].statistics().stale_pushes() / kServers;
  EXPECT_THAT(rows, ::testing::Each(-static_cast<float>(kWorkers * 30 - stale)));
}

// Pushes once, with a global batch that stays incomplete, and flushes through a client with this injector.
void ExpectFlushApplies(const rpc::FaultInjector& injector) {
  PsCluster cluster(kServers);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect(0, injector));
  TANDEM_ASSERT_OK(client->CreateTable(SumTable(Gba(1, 4))));
  const std::vector<uint64_t> ids = {0, 977, 1954, 2931, 3908, 4885};
  std::vector<float> rows(ids.size()), ones(ids.size(), 1.0f);
  TANDEM_ASSERT_OK(client->Pull(0, false, {{.table = "user", .ids = ids, .rows = rows.data()}}).status());
  TANDEM_ASSERT_OK(client->Push(0, {{.table = "user", .ids = ids, .gradients = ones.data()}}));
  TANDEM_ASSERT_OK(client->Pull(1, true, {{.table = "user", .ids = ids, .rows = rows.data()}}).status());
  EXPECT_THAT(rows, ::testing::Each(0.0f));
  TANDEM_ASSERT_OK(client->Flush("user"));
  TANDEM_ASSERT_OK(client->Pull(1, true, {{.table = "user", .ids = ids, .rows = rows.data()}}).status());
  EXPECT_THAT(rows, ::testing::Each(-1.0f));
}

TEST(GbaClient, FlushAppliesAnIncompleteUpdate) {
  std::atomic<int> flushes{0}, changes{0};
  ExpectFlushApplies([&](absl::string_view method, int64_t) {
    flushes += method == "/tandem.v1.ParameterServer/Flush";
    changes += method == "/tandem.v1.ParameterServer/SetUpdateMode";
    return rpc::Fault();
  });
  EXPECT_EQ(flushes, static_cast<int>(kServers));
  EXPECT_EQ(changes, 0);
}

TEST(GbaClient, FlushUsesTheOldMethodOfAServerWithoutTheNewOne) {
  std::atomic<int> changes{0};
  ExpectFlushApplies([&](absl::string_view method, int64_t) {
    changes += method == "/tandem.v1.ParameterServer/SetUpdateMode";
    if (method != "/tandem.v1.ParameterServer/Flush") return rpc::Fault();
    return rpc::Fault{.kind = rpc::Fault::Kind::kFailBefore,
                      .status = absl::UnimplementedError("there is no such method")};
  });
  EXPECT_EQ(changes, static_cast<int>(kServers));
}

TEST(GbaClient, ChangesOfModeUnderLoadLoseNothing) {
  const v1::UpdateMode modes[] = {Sync(), Bounded(2), Async(), Gba(1000)};
  for (const v1::UpdateMode& from : modes) {
    for (const v1::UpdateMode& to : modes) {
      SCOPED_TRACE(FormatUpdateMode(from) + " and " + FormatUpdateMode(to));
      PsCluster cluster(2);
      const v1::TableConfig config = SumTable(from);
      TANDEM_ASSERT_OK_AND_ASSIGN(auto control, cluster.Connect());
      TANDEM_ASSERT_OK(control->CreateTable(config));
      Train(cluster, config, 20, nullptr, [&](uint32_t worker, uint64_t step) {
        if (worker != 0 || step % 4 != 3) return;
        const absl::Status changed = control->SetUpdateMode("user", step % 8 == 3 ? to : from);
        TANDEM_CHECK_MSG(changed.ok(), changed.ToString());
      });
      TANDEM_ASSERT_OK(control->SetUpdateMode("user", Async()));
      const uint64_t id[] = {977};
      float row = 0;
      TANDEM_ASSERT_OK(control->Pull(0, true, {{.table = "user", .ids = id, .rows = &row}}).status());
      EXPECT_EQ(row, -static_cast<float>(kWorkers * 20));
      TANDEM_ASSERT_OK_AND_ASSIGN(const auto servers, control->ListTablesPerServer(0));
      for (const auto& server : servers) EXPECT_EQ(server[0].statistics().kept_pushes(), 0);
    }
  }
}

TEST(GbaClient, LostAnswersApplyNothingTwiceAndGroupAlike) {
  PsCluster cluster(2);
  std::atomic<int> calls{0};
  // Every fifth push is applied, but its response is lost: the client sends it again.
  const rpc::FaultInjector injector = [&calls](absl::string_view method, int64_t) {
    const bool lost = method == "/tandem.v1.ParameterServer/Push" && calls.fetch_add(1) % 5 == 0;
    return rpc::Fault{.kind = lost ? rpc::Fault::Kind::kFailAfter : rpc::Fault::Kind::kNone};
  };
  Train(cluster, SumTable(Gba(1000, 3)), 20, injector, [](uint32_t, uint64_t) {});
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto servers, client->ListTablesPerServer(0));
  for (const auto& server : servers) EXPECT_EQ(server[0].statistics().version(), kWorkers * 20 / 3);
}

TEST(GbaClient, APushOfAnotherTableDoesNotChangeThatServer0ComesFirst) {
  PsCluster cluster(2);
  std::atomic<bool> broken{false};
  std::vector<std::unique_ptr<rpc::Channel>> channels = cluster.Channels();
  channels[0] = std::move(cluster.Channels([&broken](absl::string_view method, int64_t) {
    const bool fails = broken && method == "/tandem.v1.ParameterServer/Push";
    return rpc::Fault{.kind = fails ? rpc::Fault::Kind::kFailBefore : rpc::Fault::Kind::kNone,
                      .status = absl::InternalError("broken")};
  })[0]);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect(std::move(channels), {}));
  v1::TableConfig other = SumTable(Async());
  other.set_name("item");
  TANDEM_ASSERT_OK(client->CreateTable(SumTable(Gba(1, 4))));
  TANDEM_ASSERT_OK(client->CreateTable(other));
  const std::vector<uint64_t> ids = {0, 977, 1954, 2931};
  const std::vector<float> ones(ids.size(), 1.0f);
  TANDEM_ASSERT_OK(client->Push(0, {{.table = "user", .ids = ids, .gradients = ones.data()}}));
  TANDEM_ASSERT_OK(client->Push(0, {{.table = "item", .ids = ids, .gradients = ones.data()}}));
  broken = true;
  absl::Notification ended;
  const std::shared_ptr<PushHandle> push =
      client->StartPush(1, {{.table = "user", .ids = ids, .gradients = ones.data()}}, {},
                        [&ended](const absl::Status&) { ended.Notify(); });
  ended.WaitForNotification();
  EXPECT_THAT(push->outcomes(), ::testing::ElementsAre(PushOutcome::kUnknown, PushOutcome::kNotSent));
}

TEST(GbaClient, ServersTellOfThemselves) {
  PsCluster cluster(2);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto servers, client->ListServers());
  ASSERT_EQ(servers.size(), 2);
  EXPECT_EQ(servers[1].index(), 1);
  EXPECT_GT(servers[1].rss_bytes(), 0);
}

}  // namespace
}  // namespace tandem::ps
