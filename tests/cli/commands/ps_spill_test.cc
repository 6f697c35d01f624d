// SPDX-License-Identifier: Apache-2.0
// tandem ps with rows on disk: killed and started again, and a directory that two servers want.

#include <signal.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cluster/store/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/client/client.h"
#include "ps/table.h"
#include "rpc/channel.h"
#include "tests/ps/storage/spill/rocksdb.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/test_key.h"

namespace tandem::cli {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using testing::kTestTimeout;
using testing::RunTandem;
using testing::TandemProcess;
using testing::TempDir;

constexpr uint32_t kDim = 16;
constexpr uint64_t kIds = 8000;

class PsSpillTest : public ::testing::Test {
 protected:
  void SetUp() override { TANDEM_SKIP_WITHOUT_ROCKSDB(); }
  std::string spill_dir() const { return dir_.File("spill"); }
  std::vector<std::string> Args() const {
    return {"ps", "--index",     "0",         "--num-servers", "1",   "--lease",
            "60", "--spill-dir", spill_dir(), "--spill-cache", "8MiB"};
  }
  static std::map<std::string, std::string> Variables(const cluster::StoreServer& store) {
    return {{"TANDEM_STORE", absl::StrCat("127.0.0.1:", store.port())}};
  }
  static absl::StatusOr<std::unique_ptr<ps::Client>> Connect(cluster::StoreServer& store) {
    TANDEM_ASSIGN_OR_RETURN(const std::string address, store.store()->Get("ps/0", kTestTimeout));
    std::vector<std::unique_ptr<rpc::Channel>> channels(1);
    TANDEM_ASSIGN_OR_RETURN(channels[0], rpc::ConnectGrpc(address, {.caller = testing::WithTestKey()}));
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ps::Client> client,
                            ps::Client::Connect(std::move(channels), {.timeout = kTestTimeout}));
    ps::v1::TableConfig config =
        ps::EmbeddingTable("user", kDim, ps::Adagrad(0.1f), ps::Uniform(-1.0f, 1.0f));
    *config.mutable_eviction() = ps::EvictLru();
    config.set_byte_budget(1 << 20);
    config.set_spill(true);
    TANDEM_RETURN_IF_ERROR(client->CreateTable(config));
    return client;
  }
  static absl::StatusOr<std::vector<float>> Rows(ps::Client& client) {
    std::vector<uint64_t> ids;
    for (uint64_t id = 0; id < kIds; ++id) ids.push_back(id);
    std::vector<float> rows(kIds * kDim);
    TANDEM_RETURN_IF_ERROR(
        client.Pull(0, /*read_only=*/true, {{.table = "user", .ids = ids, .rows = rows.data()}}));
    return rows;
  }
  static absl::StatusOr<uint64_t> SpilledRows(ps::Client& client) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<ps::v1::TableInfo> tables, client.ListTables());
    return tables.at(0).statistics().spilled_rows();
  }

  TempDir dir_;
};

TEST_F(PsSpillTest, AKilledServersRowsAreRemovedAndAnotherGoesOnFromTheCheckpoint) {
  std::string saved;
  std::vector<float> trained;
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto store, cluster::StoreServer::Start("127.0.0.1:0"));
    TandemProcess server(Args(), Variables(*store));
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ps::Client> client, Connect(*store));
    for (uint64_t step = 0; step < 16; ++step) {
      std::vector<uint64_t> ids;
      for (uint64_t i = 0; i < kIds / 16; ++i) ids.push_back(step * (kIds / 16) + i);
      std::vector<float> rows(ids.size() * kDim);
      TANDEM_ASSERT_OK(client->Pull(step, false, {{.table = "user", .ids = ids, .rows = rows.data()}}));
      TANDEM_ASSERT_OK(client->Push(step, {{.table = "user", .ids = ids, .gradients = rows.data()}}));
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t spilled, SpilledRows(*client));
    EXPECT_GT(spilled, 0);
    TANDEM_ASSERT_OK_AND_ASSIGN(trained, Rows(*client));
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, ps::BeginCheckpoint(dir_.File("ckpt"), 16));
    TANDEM_ASSERT_OK(client->SaveCheckpoint(unfinished));
    TANDEM_ASSERT_OK_AND_ASSIGN(saved, ps::CommitCheckpoint(unfinished, {}));

    const Finished second = RunTandem(Args(), Variables(*store));
    EXPECT_EQ(second.exit_code, 1);
    EXPECT_THAT(second.err, HasSubstr(absl::StrCat(spill_dir(), " is in use by process ", server.pid())));
    EXPECT_TRUE(std::filesystem::exists(spill_dir() + "/rows"));
    server.Signal(SIGKILL);
    EXPECT_EQ(server.Wait(), 128 + SIGKILL);
  }
  EXPECT_TRUE(std::filesystem::exists(spill_dir() + "/rows"));

  TANDEM_ASSERT_OK_AND_ASSIGN(const auto store, cluster::StoreServer::Start("127.0.0.1:0"));
  TandemProcess server(Args(), Variables(*store));
  TANDEM_ASSERT_OK(store->store()->Get("ps/0", kTestTimeout));
  EXPECT_FALSE(std::filesystem::exists(spill_dir() + "/rows"));  // before any table needs it
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ps::Client> client, Connect(*store));
  TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t none, SpilledRows(*client));
  EXPECT_EQ(none, 0);
  TANDEM_ASSERT_OK(client->LoadCheckpoint(saved));
  TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t spilled, SpilledRows(*client));
  EXPECT_GT(spilled, 0);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<float> loaded, Rows(*client));
  EXPECT_EQ(loaded, trained);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0) << server.err();
  EXPECT_FALSE(std::filesystem::exists(spill_dir()));
}

}  // namespace
}  // namespace tandem::cli
