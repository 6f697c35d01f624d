// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/members.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/json.h"
#include "cluster/store/store_server.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

TEST(Members, TellWhichProcessOfTheirNameTheyAre) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto store, cluster::StoreServer::Start("127.0.0.1:0"));
  cluster::LocalMembership& membership = *store->membership();
  for (int64_t life = 1; life <= 2; ++life) {
    const cluster::MemberProcess process = {.host = "node-a", .pid = life};
    ASSERT_EQ(membership.Join("worker/0", process, 0, /*replaces=*/life - 1)->life, life);
    TANDEM_ASSERT_OK(membership.Heartbeat("worker/0", absl::Hours(1), false, {.state = "training"}, life));
    TANDEM_ASSERT_OK_AND_ASSIGN(const JobMembers job,
                                AskMembers("127.0.0.1:" + std::to_string(store->port()), absl::Seconds(30)));
    EXPECT_EQ(ParseJson(MembersToJson(job))["members"][0]["life"], life);
    EXPECT_EQ(MembersToText(job).find("training (life 2)") != std::string::npos, life == 2);
  }
}

TEST(Members, AreOrderedByRoleAndIndexAndTellWhetherTheyLive) {
  SimulatedClock clock;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto store, cluster::StoreServer::Start("127.0.0.1:0", &clock));
  cluster::LocalMembership& membership = *store->membership();
  membership.AllowRestart("actor");  // whose silence does not end the job
  const auto beat = [&](const char* name, bool leaving = false) {
    TANDEM_ASSERT_OK(
        membership.Heartbeat(name, absl::Seconds(10), leaving,
                             {.state = "training", .host = "node-a", .pid = 4711, .step = 12, .epoch = 3}));
  };
  for (const char* name : {"worker/10", "worker/2", "ps/0", "actor/0"}) beat(name);
  clock.Advance(absl::Seconds(7));
  beat("worker/10");
  beat("ps/0", /*leaving=*/true);
  const std::string address = "127.0.0.1:" + std::to_string(store->port());
  TANDEM_ASSERT_OK_AND_ASSIGN(JobMembers job, AskMembers(address, absl::Seconds(30)));
  std::vector<std::string> told;
  for (const Member& member : job.members) told.push_back(member.name + " " + member.Liveness());
  EXPECT_THAT(told,
              ::testing::ElementsAre("actor/0 silent", "ps/0 left", "worker/2 silent", "worker/10 alive"));
  EXPECT_FALSE(job.ended);

  clock.Advance(absl::Seconds(4));
  TANDEM_ASSERT_OK_AND_ASSIGN(job, AskMembers(address, absl::Seconds(30)));
  EXPECT_STREQ(job.members[0].Liveness(), "dead");
  EXPECT_TRUE(job.failed);
  const std::string text = MembersToText(job);
  EXPECT_THAT(text, HasSubstr("The job has failed: worker/2 has been silent for 11s"));
  EXPECT_THAT(text, HasSubstr("dead, was training"));
  EXPECT_THAT(text, HasSubstr("node-a"));
  const Json json = ParseJson(MembersToJson(job));
  EXPECT_EQ(json["members"][3]["member"], "worker/10");
  EXPECT_EQ(json["members"][3]["role"], "worker");
  EXPECT_EQ(json["members"][3]["index"], 10);
  EXPECT_EQ(json["members"][3]["pid"], 4711);
  EXPECT_EQ(json["members"][3]["step"], 12);
  EXPECT_EQ(json["members"][3]["epoch"], 3);
  EXPECT_EQ(json["members"][3]["last_heartbeat_s"], 4.0);
  EXPECT_EQ(json["members"][3]["liveness"], "alive");
  EXPECT_EQ(json["failed"], true);
}

TEST(Members, ServersAreShownWithTheirAddresses) {
  const JobMembers none{.members = {{.name = "worker/0", .host = "node-a"}}};
  EXPECT_THAT(MembersToText(none), Not(HasSubstr("ADDRESS")));
  JobMembers job = none;
  job.members.push_back({.name = "ps/0", .host = "node-b", .address = "10.0.0.2:7001"});
  job.members.push_back({.name = "ps/1", .host = "node-b"});  // is starting
  const std::vector<std::string> lines = absl::StrSplit(MembersToText(job), '\n');
  ASSERT_GE(lines.size(), 4u);
  const size_t column = lines[0].find("ADDRESS");
  ASSERT_NE(column, std::string::npos);
  const auto address = [&](size_t line) {
    return lines[line].substr(column, lines[line].find(' ', column) - column);
  };
  EXPECT_EQ(address(1), "-");
  EXPECT_EQ(address(2), "10.0.0.2:7001");
  EXPECT_EQ(address(3), "-");
  EXPECT_EQ(ParseJson(MembersToJson(job))["members"][1]["address"], "10.0.0.2:7001");
}

TEST(Members, AStoreThatIsGoneIsSaidToBe) {
  EXPECT_THAT(AskMembers("127.0.0.1:1", absl::Seconds(1)).status().message(),
              HasSubstr("the job has ended, or"));
}

}  // namespace
}  // namespace tandem::cli
