// SPDX-License-Identifier: Apache-2.0
// Jobs whose parameter servers have followers, started by `tandem run`.

#include <signal.h>

#include <functional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/job_dir.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::integration {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using testing::kTestTimeout;
using testing::TandemProcess;

Args WithFollowers(const JobDir& job, int servers, int workers, Args more) {
  more.insert(more.end(), {"--no-baselines", "--set", "ps.durability=follower"});
  Args args = job.LaunchArgs(servers, workers, more);
  args.insert(args.begin() + 1, {"--ps-followers", "1"});
  return args;
}

// The copies of a running job, as the commands of a user show them.
class Copies {
 public:
  explicit Copies(const JobDir* job) : job_(*job) {}

  // Returns the object of `tandem ps status --json`; discarded until the servers are known.
  Json Shards() const { return ParseJson(job_.Run({"ps", "status", "--job", "logs", "--json"}).out); }
  // Asks until `wanted` holds for each of `count` shards. Returns false after the time-out.
  bool Await(size_t count, const std::function<bool(const Json& shard)>& wanted) const {
    const absl::Time deadline = absl::Now() + kTestTimeout;
    do {
      const Json all = Shards();
      size_t good = 0;
      if (all.is_object()) {
        for (const Json& shard : all["shards"]) good += wanted(shard) ? 1 : 0;
      }
      if (good == count) return true;
    } while (absl::Now() < deadline);
    return false;
  }
  static bool Complete(const Json& shard) {
    return shard["has_primary"] == true && shard["placement"].value("in_sync", Json::array()).size() == 1;
  }
  // Returns the process whose state in `tandem status` is `state`, or 0.
  pid_t ProcessThatIs(const std::string& state) const {
    const Json status = ParseJson(job_.Run({"status", "--job", "logs", "--json"}).out);
    if (!status.is_object()) return 0;
    for (const Json& member : status["members"]) {
      if (member["state"] == state && member["liveness"] == "alive") return member["pid"].get<pid_t>();
    }
    return 0;
  }
  // As ProcessThatIs, but waits for the heartbeat that says so.
  pid_t AwaitProcessThatIs(const std::string& state) const {
    const absl::Time deadline = absl::Now() + kTestTimeout;
    pid_t pid = 0;
    while (pid == 0 && absl::Now() < deadline) pid = ProcessThatIs(state);
    return pid;
  }

 private:
  const JobDir& job_;
};

TEST(FollowersTest, AFollowerTakesOverFromAKilledPrimaryAndTheJobGoesOn) {
  const JobDir job;
  const Copies copies(&job);
  TandemProcess launched(
      WithFollowers(job, 2, 2, {"--set", "train.epochs=100000", "--set", "checkpoint.every_epochs=0"}),
      job.Mark(), job.File("."));
  ASSERT_TRUE(launched.WaitForOutput("epoch 1/")) << launched.err();
  EXPECT_THAT(launched.err(), HasSubstr("2 parameter servers and 2 followers"));
  EXPECT_THAT(launched.err(), HasSubstr("are on one machine, whose death loses them"));
  ASSERT_TRUE(copies.Await(2, Copies::Complete)) << launched.err();

  const pid_t primary = copies.AwaitProcessThatIs("primary of shard 1");
  ASSERT_GT(primary, 0);
  EXPECT_GT(copies.AwaitProcessThatIs("follower of shard 1"), 0);
  ASSERT_EQ(::kill(primary, SIGKILL), 0);
  ASSERT_TRUE(launched.WaitForOutput(absl::StrCat("(pid ", primary, ") was killed"))) << launched.err();
  ASSERT_TRUE(launched.WaitForOutput("comes back as a new copy")) << launched.err();
  // The follower is the primary of the next term, and the process that was started again its follower.
  ASSERT_TRUE(copies.Await(1, [](const Json& shard) {
    return Copies::Complete(shard) && shard["placement"]["term"] == "2" &&
           shard["placement"]["failovers"] == "1";
  })) << launched.err();
  const Json shards = copies.Shards();
  ASSERT_TRUE(shards.is_object());
  EXPECT_EQ(shards["shards"][0]["placement"]["term"], "1");
  const Finished table = job.Run({"ps", "status", "--job", "logs"});
  EXPECT_EQ(table.exit_code, 0) << table.out << table.err;
  EXPECT_THAT(table.out, HasSubstr("FAILOVERS"));
  EXPECT_EQ(job.Run({"table", "list", "--job", "logs"}).exit_code, 0);

  launched.Signal(SIGTERM);
  EXPECT_EQ(launched.Wait(), 75) << launched.err();  // the worker has saved its state
  EXPECT_TRUE(job.NoLeaks());
}

TEST(FollowersTest, PrimariesMoveAndCopiesLeaveWhileTheJobTrains) {
  const JobDir job;
  const Copies copies(&job);
  TandemProcess launched(
      WithFollowers(job, 2, 2, {"--set", "train.epochs=100000", "--set", "checkpoint.every_epochs=0"}),
      job.Mark(), job.File("."));
  ASSERT_TRUE(launched.WaitForOutput("epoch 1/")) << launched.err();
  ASSERT_TRUE(copies.Await(2, Copies::Complete)) << launched.err();
  const std::string follower = copies.Shards()["shards"][1]["placement"]["in_sync"][0]["address"];
  const std::string primary = copies.Shards()["shards"][1]["placement"]["primary"]["address"];
  const Finished moved = job.Run({"ps", "move", "--job", "logs", "--shard", "1", "--to", follower});
  ASSERT_EQ(moved.exit_code, 0) << moved.out << moved.err << launched.err();
  EXPECT_THAT(moved.out, HasSubstr(absl::StrCat(follower, " is the primary of term 2")));
  // The earlier primary is its follower now: the same process, at its address.
  ASSERT_TRUE(copies.Await(1, [&](const Json& shard) {
    return Copies::Complete(shard) && shard["placement"]["primary"]["address"] == follower &&
           shard["placement"]["in_sync"][0]["address"] == primary && shard["placement"]["handovers"] == "1" &&
           !shard["placement"].contains("failovers");
  })) << launched.err();
  const Finished again = job.Run({"ps", "move", "--job", "logs", "--shard", "1", "--to", follower});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("is the primary already"));
  const Finished nowhere =
      job.Run({"ps", "move", "--job", "logs", "--shard", "1", "--to", "127.0.0.1:1", "--timeout", "4"});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("shard 1 has no copy at 127.0.0.1:1, but at "));
  const Finished balance = job.Run({"ps", "balance", "--job", "logs", "--dry-run"});
  EXPECT_EQ(balance.exit_code, 0) << balance.err;
  EXPECT_THAT(balance.out, HasSubstr("nothing to move"));  // there is one host

  // The primary leaves: its follower takes over, and nobody takes its place.
  const Finished drained = job.Run({"ps", "drain", "--job", "logs", follower});
  EXPECT_EQ(drained.exit_code, 0) << drained.err << launched.err();
  EXPECT_THAT(drained.out, HasSubstr(absl::StrCat("shard 1: ", follower, " has left")));
  ASSERT_TRUE(launched.WaitForOutput("has left its shard (tandem ps drain); it is not started again"))
      << launched.err();
  ASSERT_TRUE(copies.Await(1, [&](const Json& shard) {
    return shard["state"] == "no follower in sync" && shard["placement"]["term"] == "3";
  })) << launched.err();
  const Finished all = job.Run({"ps", "drain", "--job", "logs", "127.0.0.1", "--timeout", "5"});
  EXPECT_EQ(all.exit_code, 1);
  EXPECT_THAT(all.err, HasSubstr("start one elsewhere first"));
  EXPECT_TRUE(Copies::Complete(copies.Shards()["shards"][0])) << "nobody has left";
  launched.Signal(SIGTERM);
  EXPECT_EQ(launched.Wait(), 75) << launched.err();
  EXPECT_TRUE(job.NoLeaks());
}

TEST(FollowersTest, ACopyThatDiesAgainAndAgainDoesNotEndAJobThatHasItsPrimaries) {
  const JobDir job;
  const Copies copies(&job);
  Args args =
      WithFollowers(job, 1, 1, {"--set", "train.epochs=100000", "--set", "checkpoint.every_epochs=0"});
  args.insert(args.begin() + 1, {"--restart", "ps=alone:0"});  // the first death is one too many
  TandemProcess launched(args, job.Mark(), job.File("."));
  ASSERT_TRUE(launched.WaitForOutput("epoch 1/")) << launched.err();
  ASSERT_TRUE(copies.Await(1, Copies::Complete)) << launched.err();
  const pid_t follower = copies.AwaitProcessThatIs("follower of shard 0");
  ASSERT_GT(follower, 0);
  ASSERT_EQ(::kill(follower, SIGKILL), 0);
  ASSERT_TRUE(launched.WaitForOutput("its shard goes on with one copy less")) << launched.err();
  ASSERT_TRUE(copies.Await(1, [](const Json& shard) {
    return shard["has_primary"] == true && shard["state"] == "no follower in sync";
  })) << launched.err();
  launched.Signal(SIGTERM);
  EXPECT_EQ(launched.Wait(), 75) << launched.err();
  EXPECT_TRUE(job.NoLeaks());
}

TEST(FollowersTest, AJobWhoseWorkersHaveEndedStopsAllCopies) {
  const JobDir job;
  const Finished finished = job.Run(WithFollowers(job, 2, 2, {"--set", "train.epochs=2"}));
  EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("run --ps 2 --ps-followers 1 --workers 2"));  // the next command
  EXPECT_TRUE(job.NoLeaks());
}

TEST(FollowersTest, AJobThatLosesAllCopiesOfAShardEndsAndNamesTheShard) {
  const JobDir job;
  const Copies copies(&job);
  TandemProcess launched(
      WithFollowers(job, 1, 1, {"--set", "train.epochs=100000", "--set", "checkpoint.every_epochs=0"}),
      job.Mark(), job.File("."));
  ASSERT_TRUE(launched.WaitForOutput("epoch 1/")) << launched.err();
  ASSERT_TRUE(copies.Await(1, Copies::Complete)) << launched.err();
  const pid_t primary = copies.AwaitProcessThatIs("primary of shard 0");
  const pid_t follower = copies.AwaitProcessThatIs("follower of shard 0");
  ASSERT_GT(primary, 0);
  ASSERT_GT(follower, 0);
  // Stopped first, so that it does not take over.
  ASSERT_EQ(::kill(follower, SIGSTOP), 0);
  ASSERT_EQ(::kill(primary, SIGKILL), 0);
  ASSERT_EQ(::kill(follower, SIGKILL), 0);
  EXPECT_NE(launched.Wait(), 0);
  EXPECT_THAT(launched.err(), HasSubstr("shard 0"));
  EXPECT_THAT(launched.err(), HasSubstr("checkpoint"));
  EXPECT_TRUE(job.NoLeaks());
}

TEST(FollowersTest, AJobThatRequiresFollowersIsRefusedWithoutThem) {
  const JobDir job;
  const Finished without = job.Train(1, 1, {"--no-baselines", "--set", "ps.durability=follower"});
  EXPECT_EQ(without.exit_code, 1);
  EXPECT_THAT(without.err, HasSubstr("ps/0 has no followers: start the servers with `tandem run --ps N "
                                     "--ps-followers 1`"));
  const Finished alone = job.Run({"train", "job.yaml", "--no-baselines", "--set", "ps.durability=follower"});
  EXPECT_EQ(alone.exit_code, 1);
  EXPECT_THAT(alone.err, HasSubstr("this process is alone"));
  const Finished soon = job.Run(WithFollowers(job, 1, 1, {"--set", "train.timeout_seconds=4"}));
  EXPECT_EQ(soon.exit_code, 1);
  EXPECT_THAT(soon.err, HasSubstr("train.timeout_seconds is 4, but a follower may need 5 s"));
}

TEST(FollowersTest, FlagsThatDoNotFitEachOtherAreRefused) {
  const Args server = {"ps", "--index", "0", "--num-servers", "1"};
  const auto refused = [&](Args more, const char* message) {
    more.insert(more.begin(), server.begin(), server.end());
    const Finished finished = testing::RunTandem(more, {{"TANDEM_STORE", "127.0.0.1:1"}});
    EXPECT_NE(finished.exit_code, 0);
    EXPECT_THAT(finished.err, HasSubstr(message));
  };
  refused({"--followers", "1", "--wal-dir", "wal"}, "--wal-dir and --followers exclude each other");
  refused({"--min-copies", "2"}, "--min-copies 2 needs 1 or more followers");
  refused({"--followers", "1", "--min-copies", "3"},
          "--min-copies 3 needs 2 or more followers of each server, not 1");
  refused({"--followers", "1", "--copy", "2"}, "TANDEM_PS_COPY=2 is out of range");
}

}  // namespace
}  // namespace tandem::integration
