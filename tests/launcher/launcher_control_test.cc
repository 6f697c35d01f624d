// SPDX-License-Identifier: Apache-2.0
// Tests the messages between a launcher and its processes.

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cluster/store/store_server.h"
#include "collectives/elastic/launcher_client.h"
#include "launcher/launcher_control.h"
#include "tests/testing/status_matchers.h"

namespace tandem::launcher {
namespace {

using cluster::StoreServer;
using collectives::Assignment;
using collectives::LauncherClient;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

class LauncherControlTest : public ::testing::Test {
 protected:
  std::unique_ptr<LauncherClient> Child(const std::string& process) {
    return LauncherClient::Connect(absl::StrCat("127.0.0.1:", server_->port()), process).value();
  }
  std::unique_ptr<StoreServer> server_ = StoreServer::Start("127.0.0.1:0").value();
};

Assignment AssignmentOf(int64_t number, int rank) {
  Assignment a;
  a.number = number;
  a.epoch = number + 10;
  a.rank = rank;
  a.world_size = 8;
  a.local_world_size = 4;
  a.store = "10.0.0.1:4711";
  a.master_addr = "10.0.0.1";
  a.master_port = 29500;
  a.restarts = 2;
  return a;
}

TEST_F(LauncherControlTest, AProcessHearsThatItsRoundIsOverAndOfItsNextPlace) {
  LauncherControl control(server_->store());
  auto child = Child("worker/1");
  EXPECT_THAT(child->AwaitOver(1, absl::Milliseconds(20)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  std::thread launcher([&] {
    TANDEM_EXPECT_OK(control.RoundOver(1, "node b has left"));
    TANDEM_EXPECT_OK(control.Announce({{"worker/0", AssignmentOf(2, 6)}, {"worker/1", AssignmentOf(2, 7)}}));
  });
  EXPECT_EQ(child->AwaitOver(1, absl::Seconds(20)).value(), "node b has left");
  TANDEM_ASSERT_OK_AND_ASSIGN(const Assignment next,
                              child->AwaitAssignment(2, absl::Now() + absl::Seconds(20)));
  launcher.join();
  EXPECT_EQ(next.ToText(), AssignmentOf(2, 7).ToText());
}

TEST_F(LauncherControlTest, AProcessThatWasBusyForSeveralRoundsComesIntoTheNewest) {
  LauncherControl control(server_->store());
  for (int64_t number = 2; number <= 5; ++number) {
    TANDEM_ASSERT_OK(control.RoundOver(number - 1, "node b joins"));
    TANDEM_ASSERT_OK(control.Announce({{"worker/1", AssignmentOf(number, 7)}}));
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const Assignment next,
                              Child("worker/1")->AwaitAssignment(2, absl::Now() + absl::Seconds(20)));
  EXPECT_EQ(next.number, 5);
}

TEST_F(LauncherControlTest, NoFurtherRoundIsAnEnd) {
  LauncherControl control(server_->store());
  TANDEM_ASSERT_OK(control.Close("max_restarts is used up"));
  EXPECT_THAT(Child("worker/0")->AwaitAssignment(2, absl::Now() + absl::Seconds(20)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("max_restarts")));
}

TEST_F(LauncherControlTest, NoPlaceInTimeIsNamed) {
  EXPECT_THAT(Child("worker/3")->AwaitAssignment(2, absl::Now() + absl::Milliseconds(30)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("worker/3")));
}

TEST_F(LauncherControlTest, TroubleComesToTheLauncherOnceEach) {
  absl::Notification all;
  std::atomic<int> count{0};
  {
    LauncherControl control(server_->store());
    TANDEM_ASSERT_OK(Child("worker/0")->ReportPeerFailure(3, "before anybody listened"));
    control.OnPeerFailure([&](LauncherControl::PeerFailure failure) {
      EXPECT_EQ(failure.number, 3);
      EXPECT_EQ(failure.process, "worker/0");
      if (++count == 5) all.Notify();
    });
    for (int i = 0; i < 4; ++i) TANDEM_ASSERT_OK(Child("worker/0")->ReportPeerFailure(3, "rank 1\ndied"));
    EXPECT_TRUE(all.WaitForNotificationWithTimeout(absl::Seconds(20)));
  }
  TANDEM_EXPECT_OK(Child("worker/0")->ReportPeerFailure(4, "nobody listens any more"));
  EXPECT_EQ(count, 5);
}

TEST_F(LauncherControlTest, WhatIsNoAssignmentIsRefused) {
  EXPECT_THAT(Assignment::FromText("rank=1"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Assignment::FromText(""), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace tandem::launcher
