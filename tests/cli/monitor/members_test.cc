// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/members.h"

#include "base/json.h"
#include "collectives/store/store_server.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;
using Json = nlohmann::json;

TEST(Members, AreOrderedByRoleAndIndexAndTellWhetherTheyLive) {
  SimulatedClock clock;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto store, collectives::StoreServer::Start("127.0.0.1:0", &clock));
  collectives::Membership& membership = *store->membership();
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

TEST(Members, AStoreThatIsGoneIsSaidToBe) {
  EXPECT_THAT(AskMembers("127.0.0.1:1", absl::Seconds(1)).status().message(),
              HasSubstr("has the job ended?"));
}

}  // namespace
}  // namespace tandem::cli
