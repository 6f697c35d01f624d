// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/find_job.h"

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/monitor/rounds.h"
#include "cluster/rendezvous/rendezvous.h"
#include "cluster/store/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/security/job_key.h"
#include "rpc/security/transport_security.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A command that looks at a job takes that job's key; a test gives it back.
class FindServersTest : public ::testing::Test {
 protected:
  void TearDown() override { rpc::SetProcessCredential({}); }
};

TEST_F(FindServersTest, AJobFileSaysWhereItsJobIs) {
  testing::TempDir dir;
  TANDEM_ASSERT_OK(launcher::WriteJobFile(
      dir.path(),
      {.store = "10.0.0.1:4711", .rendezvous = "etcd://e:2379/p/job", .run_id = "job", .num_servers = 3}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const launcher::JobAddress found, FindJob({.job = dir.path()}));
  EXPECT_EQ(found.store, "10.0.0.1:4711");
  EXPECT_EQ(found.rendezvous, "etcd://e:2379/p/job");
  EXPECT_EQ(found.run_id, "job");
  EXPECT_EQ(found.num_servers, 3);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string store, FindStore({.job = dir.path()}));
  EXPECT_EQ(store, "10.0.0.1:4711");
}

TEST_F(FindServersTest, WhatIsNoJobFileIsNamed) {
  testing::TempDir dir;
  EXPECT_THAT(FindJob({.job = dir.path()}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(dir.path())));
  for (const char* text : {"", "[]", "{\"store\": 7}", "{\"store\""}) {
    std::ofstream(dir.File(launcher::kJobFile), std::ios::trunc) << text;
    EXPECT_THAT(FindJob({.job = dir.path()}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no job file")))
        << text;
  }
  EXPECT_THAT(FindStore({.store = "nowhere"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nowhere")));
}

TEST_F(FindServersTest, ServersAreFoundByIndexInTheJobsStore) {
  const auto store = cluster::StoreServer::Start("127.0.0.1:0").value();
  TANDEM_ASSERT_OK(store->store()->Set("ps/2", "c:3"));
  TANDEM_ASSERT_OK(store->store()->Set("ps/0", "a:1"));
  const std::string address = absl::StrCat("127.0.0.1:", store->port());
  EXPECT_THAT(FindServers({.store = address}).value(), ElementsAre("a:1", "", "c:3"));
  EXPECT_THAT(FindServers({.servers = "x:1,y:2"}).value(), ElementsAre("x:1", "y:2"));
}

TEST(RoundsTest, WhoTakesPartIsReadFromTheLaunchersStore) {
  const auto server = cluster::StoreServer::Start("127.0.0.1:0").value();
  const std::string where = absl::StrCat("127.0.0.1:", server->port());
  EXPECT_THAT(AskRounds(where, "", absl::Seconds(20)).status(), StatusIs(absl::StatusCode::kNotFound));
  cluster::RendezvousOptions options{.run_id = "job7", .max_restarts = 2};
  const auto rendezvous = cluster::MakeRendezvous(server->store(), options).value();
  TANDEM_ASSERT_OK(rendezvous->Join(
      {.id = "me", .host = "10.0.0.1", .store = "10.0.0.1:4711", .processes = {{"worker", 4}}}));
  TANDEM_ASSERT_OK_AND_ASSIGN(JobRounds job, AskRounds(where, "", absl::Seconds(20)));
  EXPECT_EQ(job.run_id, "job7");
  EXPECT_EQ(job.store(), "10.0.0.1:4711");
  EXPECT_THAT(RoundsToText(job), AllOf(HasSubstr("Job job7: running, epoch 1, 0 of 2 restarts"),
                                       HasSubstr("0  me    10.0.0.1  4 worker   in the round")));
  TANDEM_ASSERT_OK(rendezvous->Close(/*failed=*/true, "worker/2 exited with code 9", 9));
  TANDEM_ASSERT_OK_AND_ASSIGN(job, AskRounds(where, "job7", absl::Seconds(20)));
  EXPECT_EQ(job.store(), "");
  EXPECT_THAT(RoundsToText(job), HasSubstr("It has failed: worker/2 exited with code 9"));
  EXPECT_THAT(RoundsToJson(job), AllOf(HasSubstr("\"phase\":\"failed\""), HasSubstr("\"exit_code\":9")));
  EXPECT_THAT(AskRounds(where, "job8", absl::Seconds(20)).status(), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace tandem::cli
