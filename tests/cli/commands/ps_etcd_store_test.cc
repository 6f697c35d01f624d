// SPDX-License-Identifier: Apache-2.0
// Real servers whose job's store is in an etcd cluster: members of it die, and nothing is lost.

#include <signal.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "cluster/join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/failover/store_board.h"
#include "tests/cli/commands/exactly_once.h"
#include "tests/cli/commands/shard_copies.h"
#include "tests/testing/processes/etcd_server.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using testing::EtcdServer;
using ::testing::HasSubstr;
using testing::kTestTimeout;
using testing::TandemProcess;

constexpr int kEtcdLease = 20;
constexpr uint64_t kPushesBetweenEtcdEvents = 60;

std::string UrlOf(const std::vector<std::unique_ptr<EtcdServer>>& etcd) {
  std::string hosts;
  for (const auto& member : etcd) absl::StrAppend(&hosts, hosts.empty() ? "" : ",", member->address());
  return absl::StrCat("etcd://", hosts, "/job");
}

TEST(PsEtcdStore, NothingIsLostAndNoSecondPrimaryBeginsWhileEtcdsMembersDieAndAllRestart) {
  if (!EtcdServer::Installed()) GTEST_SKIP() << "etcd-server is not installed";
  const auto etcd = EtcdServer::StartCluster(3, {}, "127.0.77.12");
  ASSERT_EQ(etcd.size(), 3);
  ShardCopies copies(1, 1, nullptr, ShardCopies::Network::kDirect, kEtcdLease, UrlOf(etcd));
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<ExactlyOnce> pushes,
      ExactlyOnce::Start(
          {.servers = 1, .workers = 2, .dim = 8, .mode = ps::Async(), .connect = [&](uint32_t worker) {
             return copies.Connect(worker, 2 * kTestTimeout);
           }}));
  ps::StoreBoard board(std::shared_ptr<rpc::Channel>(cluster::ConnectStore(copies.store_address()).value()));
  // TANDEM_STORE_LOSSES=20 is the long form.
  const char* const text = std::getenv("TANDEM_STORE_LOSSES");
  const int events = text == nullptr ? 4 : std::atoi(text);
  for (int event = 0; event < events; ++event) {
    ASSERT_TRUE(pushes->AwaitAcknowledged(kPushesBetweenEtcdEvents)) << pushes->End() << "\n"
                                                                     << copies.Describe();
    const int primary = copies.AwaitRedundant(0);
    ASSERT_GE(primary, 0) << copies.Describe();
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ReplicaStatus before, copies.Status(0, primary));
    if (event % 2 == 0) {
      // One member of three dies, and comes back after the job has gone on without it.
      etcd[static_cast<size_t>(event / 2 % 3)]->Kill();
      ASSERT_TRUE(pushes->AwaitAcknowledged(kPushesBetweenEtcdEvents)) << pushes->End();
      TANDEM_EXPECT_OK(board.Read(0, kTestTimeout).status());
      ASSERT_TRUE(etcd[static_cast<size_t>(event / 2 % 3)]->Restart());
    } else {
      for (const auto& member : etcd) member->Kill();
      ASSERT_TRUE(pushes->AwaitAcknowledged(kPushesBetweenEtcdEvents)) << "training needs no store\n"
                                                                       << pushes->End();
      for (const auto& member : etcd) ASSERT_TRUE(member->Restart());
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ShardPlacement placement, board.Read(0, kTestTimeout));
    EXPECT_EQ(placement.term(), before.placement().term()) << copies.Describe();
    EXPECT_EQ(placement.primary().id(), before.self().id()) << copies.Describe();
    EXPECT_EQ(copies.AwaitRedundant(0), primary) << "event " << event << "\n" << copies.Describe();
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

TEST(PsEtcdStore, ASecondProcessOfANameIsRefusedAndStatusShowsTheFirst) {
  if (!EtcdServer::Installed()) GTEST_SKIP() << "etcd-server is not installed";
  const auto etcd = EtcdServer::StartCluster(1);
  ASSERT_EQ(etcd.size(), 1);
  const std::vector<std::string> server = {"ps", "--index", "0", "--num-servers", "1"};
  const std::map<std::string, std::string> job = {{"TANDEM_STORE", UrlOf(etcd)}};
  TandemProcess first(server, job);
  ASSERT_TRUE(first.WaitForOutput("serving at")) << first.err();
  TandemProcess second(server, job);
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_THAT(second.err(), HasSubstr(absl::StrCat("ps/0 is there already: pid ", first.pid())));
  const testing::Finished shown = testing::RunTandem({"status"}, job);
  EXPECT_THAT(shown.out, HasSubstr("ps/0")) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr(absl::StrCat(first.pid())));
  first.Signal(SIGTERM);
  EXPECT_EQ(first.Wait(), 0) << first.err();
}

}  // namespace
}  // namespace tandem::cli
