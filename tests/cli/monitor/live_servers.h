// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_CLI_MONITOR_LIVE_SERVERS_H_
#define TANDEM_TESTS_CLI_MONITOR_LIVE_SERVERS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/monitor/server_metrics.h"
#include "cluster/store/store_server.h"
#include "gtest/gtest.h"
#include "ps/client/client.h"
#include "ps/table.h"
#include "rpc/channel.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_key.h"

namespace tandem::cli {

// A job of two servers whose store the test serves, and a client that has used them.
class LiveServers : public ::testing::Test {
 protected:
  static constexpr uint64_t kSteps = 300;  // each pulls and pushes id 7 and three others
  void SetUp() override {
    TANDEM_ASSERT_OK_AND_ASSIGN(store_, cluster::StoreServer::Start("127.0.0.1:0"));
    std::vector<std::unique_ptr<rpc::Channel>> channels;
    for (int i = 0; i < 2; ++i) {
      servers_.push_back(StartServer(i));
      TANDEM_ASSERT_OK_AND_ASSIGN(const std::string address,
                                  store_->store()->Get(absl::StrCat("ps/", i), testing::kTestTimeout));
      addresses_.push_back(address);
      TANDEM_ASSERT_OK_AND_ASSIGN(std::unique_ptr<rpc::Channel> channel,
                                  rpc::ConnectGrpc(address, {.caller = testing::WithTestKey()}));
      channels.push_back(std::move(channel));
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(client_,
                                ps::Client::Connect(std::move(channels), {.timeout = testing::kTestTimeout}));
    ps::v1::TableConfig config = ps::EmbeddingTable("user", 4, ps::Sgd(0.1f), ps::Zeros());
    *config.mutable_update_mode() = ps::Async();
    TANDEM_ASSERT_OK(client_->CreateTable(config));
    std::vector<uint64_t> ids(4);
    std::vector<float> rows(ids.size() * 4);
    for (uint64_t step = 0; step < kSteps; ++step) {
      ids[0] = 7;
      for (size_t i = 1; i < ids.size(); ++i) ids[i] = 1000 * (step + 1) + i;
      TANDEM_ASSERT_OK_AND_ASSIGN(
          const ps::PullVersions versions,
          client_->Pull(step, false, {{.table = "user", .ids = ids, .rows = rows.data()}}));
      TANDEM_ASSERT_OK(client_->Push(
          step, {{.table = "user", .ids = ids, .gradients = rows.data(), .pulled_versions = versions[0]}}));
    }
  }
  std::unique_ptr<testing::TandemProcess> StartServer(int index) const {
    std::vector<std::string> args = {"ps",      "--index", absl::StrCat(index), "--num-servers", "2",
                                     "--lease", "30"};
    if (CheckServerMetrics().ok()) args.insert(args.end(), {"--metrics-port", "0"});
    return std::make_unique<testing::TandemProcess>(args, Variables());
  }
  std::map<std::string, std::string> Variables() const {
    return {{"TANDEM_STORE", absl::StrCat("127.0.0.1:", store_->port())}};
  }
  std::string Store() const { return absl::StrCat("127.0.0.1:", store_->port()); }
  std::string Servers() const { return absl::StrCat(addresses_[0], ",", addresses_[1]); }

  std::unique_ptr<cluster::StoreServer> store_;
  std::vector<std::unique_ptr<testing::TandemProcess>> servers_;
  std::vector<std::string> addresses_;
  std::unique_ptr<ps::Client> client_;
};

}  // namespace tandem::cli

#endif  // TANDEM_TESTS_CLI_MONITOR_LIVE_SERVERS_H_
