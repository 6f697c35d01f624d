// What a launcher and its processes tell each other.

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "collectives/elastic/launcher_client.h"
#include "collectives/store/store_server.h"
#include "launcher/launcher_control.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

class AgentTest : public ::testing::Test {
 protected:
  std::unique_ptr<AgentClient> Child(const std::string& process) {
    return AgentClient::Connect(absl::StrCat("127.0.0.1:", server_->port()), process).value();
  }
  std::unique_ptr<StoreServer> server_ = StoreServer::Start("127.0.0.1:0").value();
};

Assignment Place(int64_t number, int rank) {
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

TEST_F(AgentTest, AProcessHearsThatItsRoundIsOverAndOfItsNextPlace) {
  AgentBoard board(server_->store());
  auto child = Child("worker/1");
  EXPECT_THAT(child->AwaitOver(1, absl::Milliseconds(20)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  std::thread launcher([&] {
    TANDEM_EXPECT_OK(board.RoundOver(1, "node b has left"));
    TANDEM_EXPECT_OK(board.Announce({{"worker/0", Place(2, 6)}, {"worker/1", Place(2, 7)}}));
  });
  EXPECT_EQ(child->AwaitOver(1, absl::Seconds(20)).value(), "node b has left");
  TANDEM_ASSERT_OK_AND_ASSIGN(const Assignment next,
                              child->AwaitAssignment(2, absl::Now() + absl::Seconds(20)));
  launcher.join();
  EXPECT_EQ(next.ToText(), Place(2, 7).ToText());
}

TEST_F(AgentTest, AProcessThatWasBusyForSeveralRoundsComesIntoTheNewest) {
  AgentBoard board(server_->store());
  for (int64_t number = 2; number <= 5; ++number) {
    TANDEM_ASSERT_OK(board.RoundOver(number - 1, "node b joins"));
    TANDEM_ASSERT_OK(board.Announce({{"worker/1", Place(number, 7)}}));
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const Assignment next,
                              Child("worker/1")->AwaitAssignment(2, absl::Now() + absl::Seconds(5)));
  EXPECT_EQ(next.number, 5);
}

TEST_F(AgentTest, NoFurtherRoundIsAnEnd) {
  AgentBoard board(server_->store());
  TANDEM_ASSERT_OK(board.Close("max_restarts is used up"));
  EXPECT_THAT(Child("worker/0")->AwaitAssignment(2, absl::Now() + absl::Seconds(20)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("max_restarts")));
}

TEST_F(AgentTest, NoPlaceInTimeIsNamed) {
  EXPECT_THAT(Child("worker/3")->AwaitAssignment(2, absl::Now() + absl::Milliseconds(30)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("worker/3")));
}

TEST_F(AgentTest, TroubleComesToTheLauncherOnceEach) {
  absl::Notification all;
  std::atomic<int> count{0};
  {
    AgentBoard board(server_->store());
    TANDEM_ASSERT_OK(Child("worker/0")->ReportTrouble(3, "before anybody listened"));
    board.OnTrouble([&](AgentBoard::Trouble trouble) {
      EXPECT_EQ(trouble.number, 3);
      EXPECT_EQ(trouble.process, "worker/0");
      if (++count == 5) all.Notify();
    });
    for (int i = 0; i < 4; ++i) TANDEM_ASSERT_OK(Child("worker/0")->ReportTrouble(3, "rank 1\ndied"));
    EXPECT_TRUE(all.WaitForNotificationWithTimeout(absl::Seconds(20)));
  }
  TANDEM_EXPECT_OK(Child("worker/0")->ReportTrouble(4, "nobody listens any more"));
  EXPECT_EQ(count, 5);
}

TEST_F(AgentTest, WhatIsNoAssignmentIsRefused) {
  EXPECT_THAT(Assignment::FromText("rank=1"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Assignment::FromText(""), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace tandem::collectives
