// SPDX-License-Identifier: Apache-2.0
// Real servers whose job's store is restarted, empty: they put back what they own, and nothing is lost.

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "cluster/store/remote_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/failover/store_board.h"
#include "rpc/channel.h"
#include "rpc/connect.h"
#include "tandem/v1/store.pb.h"
#include "tests/cli/commands/exactly_once.h"
#include "tests/cli/commands/shard_copies.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

// Members send a heartbeat every quarter of it, and wait so long for the store.
constexpr int kMemberLease = 12;
constexpr uint64_t kPushesBetweenLosses = 60;

// TANDEM_STORE_LOSSES=20 is the long form.
int Losses() {
  const char* const text = std::getenv("TANDEM_STORE_LOSSES");
  return text == nullptr ? 4 : std::atoi(text);
}

// Returns whether some member has come to the store within the test's time.
bool AwaitMember(const std::string& store) {
  const std::unique_ptr<rpc::Channel> channel = rpc::ConnectGrpc(store).value();
  const absl::Time deadline = MonotonicNow() + testing::kTestTimeout;
  while (MonotonicNow() < deadline) {
    v1::MembersResponse response;
    const absl::Status asked =
        rpc::CallProto(*channel, "/tandem.v1.Store/Members", v1::MembersRequest(), &response,
                       {.timeout = testing::kTestTimeout, .idempotent = true});
    if (asked.ok() && response.members_size() > 0) return true;
  }
  return false;
}

TEST(PsStoreLost, NothingIsLostAndNoSecondPrimaryBeginsWhileTheStoreIsRestartedEmptyAgainAndAgain) {
  ShardCopies copies(1, 1, nullptr, ShardCopies::Network::kDirect, kMemberLease);
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<ExactlyOnce> pushes,
      ExactlyOnce::Start(
          {.servers = 1, .workers = 2, .dim = 8, .mode = ps::Async(), .connect = [&](uint32_t worker) {
             return copies.Connect(worker, 2 * testing::kTestTimeout);
           }}));
  ps::StoreBoard board(std::shared_ptr<rpc::Channel>(rpc::ConnectGrpc(copies.store_address()).value()));
  cluster::RemoteStore store(rpc::ConnectGrpc(copies.store_address()).value(), testing::kTestTimeout);
  for (int loss = 0; loss < Losses(); ++loss) {
    ASSERT_TRUE(pushes->AwaitAcknowledged(kPushesBetweenLosses)) << pushes->End() << "\n"
                                                                 << copies.Describe();
    const int primary = copies.AwaitRedundant(0);
    ASSERT_GE(primary, 0) << copies.Describe();
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ReplicaStatus before, copies.Status(0, primary));
    copies.KillStore();
    copies.StartStore();
    // A copy that starts meanwhile, without --fresh, becomes a follower and no primary.
    const bool starts = loss % 2 == 1;
    uint32_t added = 0;
    if (starts) {
      ASSERT_TRUE(AwaitMember(copies.store_address())) << copies.Describe();
      added = copies.Add(0);
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ShardPlacement published,
                                board.AwaitChange(0, 0, testing::kTestTimeout));
    EXPECT_EQ(published.term(), before.placement().term()) << copies.Describe();
    EXPECT_EQ(published.primary().id(), before.self().id()) << copies.Describe();
    EXPECT_EQ(copies.AwaitRedundant(0), primary) << "loss " << loss << "\n" << copies.Describe();
    EXPECT_EQ(store.Get("ps/0", testing::kTestTimeout).value(), copies.address(0, primary));
    if (starts) {
      TANDEM_ASSERT_OK(copies.Leave(0, added));
      EXPECT_EQ(copies.AwaitExit(0, added), kLeft);
      copies.Remove(0);
    }
  }
  // A takeover works as before.
  const int primary = copies.AwaitRedundant(0);
  ASSERT_GE(primary, 0) << copies.Describe();
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ReplicaStatus before, copies.Status(0, primary));
  copies.Kill(0, primary);
  EXPECT_EQ(copies.AwaitTermAbove(0, before.placement().term()), 1 - primary) << copies.Describe();
  copies.Start(0, primary);
  EXPECT_TRUE(pushes->EachPushCountsOnce()) << copies.Describe();
}

TEST(PsStoreLost, ACopyWithoutAPrimaryWaitsAndSaysSoInsteadOfBeginningAnEmptyShard) {
  testing::TandemProcess store({"store"});
  std::string address;
  ASSERT_TRUE(store.WaitForLine([&](const std::string& line) {
    address = line;
    return true;
  }));
  testing::TandemProcess copy({"ps", "--index", "0", "--num-servers", "1", "--followers", "1"},
                              {{"TANDEM_STORE", address}, {"TANDEM_PS_COPY", "0"}});
  ASSERT_TRUE(copy.WaitForOutput("serving at ")) << copy.err();
  const size_t at = copy.err().find("serving at ") + 11;
  const std::string serves = copy.err().substr(at, copy.err().find(',', at) - at);
  ASSERT_TRUE(copy.WaitForOutput("no primary has published the placement of shard 0")) << copy.err();
  const testing::Finished health = testing::RunTandem({"health", serves});
  EXPECT_EQ(health.exit_code, 1);
  EXPECT_THAT(health.out + health.err, HasSubstr("NOT_SERVING"));
  ps::StoreBoard board(std::shared_ptr<rpc::Channel>(rpc::ConnectGrpc(address).value()));
  EXPECT_EQ(board.Read(0, testing::kTestTimeout).value().version(), 0u);
  EXPECT_EQ(copy.Wait(), 1);
  EXPECT_THAT(copy.err(), HasSubstr("start one copy with --fresh"));
  EXPECT_EQ(board.Read(0, testing::kTestTimeout).value().version(), 0u);
}

TEST(PsStoreLost, AServerWithoutFollowersRegistersAgainAndStatusShowsIt) {
  std::string address = "127.0.77.10:0";
  std::unique_ptr<testing::TandemProcess> store;
  const auto start = [&] {
    store = std::make_unique<testing::TandemProcess>(std::vector<std::string>{"store", "--listen", address});
    return store->WaitForLine([&](const std::string& line) {
      address = line;
      return true;
    });
  };
  ASSERT_TRUE(start());
  testing::TandemProcess server(
      {"ps", "--index", "0", "--num-servers", "1", "--lease", absl::StrCat(kMemberLease)},
      {{"TANDEM_STORE", address}});
  ASSERT_TRUE(server.WaitForOutput("serving at")) << server.err();
  cluster::RemoteStore client(rpc::ConnectGrpc(address).value(), testing::kTestTimeout);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string serves, client.Get("ps/0", testing::kTestTimeout));
  store->Signal(SIGKILL);
  EXPECT_EQ(store->Wait(), 128 + SIGKILL);
  ASSERT_TRUE(start());
  EXPECT_EQ(client.Get("ps/0", testing::kTestTimeout).value(), serves) << server.err();
  EXPECT_TRUE(server.WaitForOutput("registered again at the job's store")) << server.err();
  // The heartbeat that says so follows at once.
  const absl::Time deadline = MonotonicNow() + testing::kTestTimeout;
  std::string shown;
  while (shown.find("registered again") == std::string::npos && MonotonicNow() < deadline) {
    shown = testing::RunTandem({"status", "--store", address}).out;
    if (shown.find("not yet") != std::string::npos) shown.clear();
  }
  EXPECT_THAT(shown, HasSubstr("The store lost its memory"));
  EXPECT_THAT(shown, HasSubstr("ago; ps/0 registered again"));
}

}  // namespace
}  // namespace tandem::cli
