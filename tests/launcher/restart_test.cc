// SPDX-License-Identifier: Apache-2.0
// Tests jobs in which a process or the launcher dies.

#include <signal.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/launcher/forever.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using testing::Finished;
using ::testing::HasSubstr;
using testing::Lines;
using ::testing::Not;
using testing::ProcessesMarked;
using testing::ReadFile;
using testing::RunTandem;
using testing::TandemProcess;
using ::testing::UnorderedElementsAre;
using testing::WaitUntilNoneMarked;

class RestartTest : public ::testing::Test {
 protected:
  std::map<std::string, std::string> Mark() const { return {{"TANDEM_TEST_MARK", dir_.path()}}; }
  bool NoLeaks() const { return WaitUntilNoneMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path())); }
  std::vector<std::string> Args(const std::vector<std::string>& flags, const std::string& script) const {
    std::vector<std::string> args = {"run", "--log-dir", dir_.path()};
    args.insert(args.end(), flags.begin(), flags.end());
    for (const std::string& word : {std::string("/bin/sh"), std::string("-c"), script}) args.push_back(word);
    return args;
  }
  // Returns the process of the job whose environment has both variables ("NAME=value"), or 0. It is a shell,
  // or the program that the shell has executed.
  pid_t WithVariable(const std::string& variable, const std::string& other) const {
    for (const pid_t pid : ProcessesMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path()))) {
      const std::string environment =
          absl::StrCat(std::string(1, '\0'), ReadFile(absl::StrCat("/proc/", pid, "/environ")));
      const auto has = [&](const std::string& one) {
        return absl::StrContains(environment, absl::StrCat(std::string(1, '\0'), one, std::string(1, '\0')));
      };
      if (has(variable) && has(other)) return pid;
    }
    return 0;
  }
  testing::TempDir dir_;
};

TEST_F(RestartTest, AFailureRestartsTheWholeJobUpToTheLimit) {
  // Rank 1 fails when rank 0 has written its line: the launcher might stop rank 0 before.
  const Finished finished =
      RunTandem(Args({"--nproc-per-node", "2", "--max-restarts", "2"},
                     absl::StrCat("round=$TORCHELASTIC_RESTART_COUNT.$TANDEM_EPOCH; echo $RANK.$round; "
                                  "if [ $RANK = 1 ]; then until grep -qs 0.$round ",
                                  dir_.File("worker-0.log"), "; do :; done; exit 3; fi; ", kForever)),
                Mark());
  EXPECT_EQ(finished.exit_code, 3);
  for (const char* round : {"0.1", "1.2", "2.3"}) {
    for (const char* rank : {"0", "1"}) EXPECT_THAT(finished.out, HasSubstr(absl::StrCat(rank, ".", round)));
  }
  EXPECT_THAT(
      finished.err,
      AllOf(ContainsRegex(
                "worker/1 \\(pid [0-9]+\\) exited with code 3; starting the job again .restart 1 of 2."),
            HasSubstr("(restart 2 of 2)"),
            ContainsRegex("worker/1 \\(pid [0-9]+\\) exited with code 3; stopping the job")));
  // Both attempts' lines are kept.
  EXPECT_EQ(Lines(ReadFile(dir_.File("worker-1.log"))).size(), 3u);
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RestartTest, AJobThatSucceedsAfterARestartEndsWell) {
  const Finished finished =
      RunTandem(Args({"--nproc-per-node", "2", "--max-restarts", "1"},
                     "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then kill -9 $$; fi; echo done $RANK"),
                Mark());
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(Lines(finished.out), UnorderedElementsAre("[worker/0] done 0", "[worker/1] done 1"));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RestartTest, AProcessOfItsOwnMindComesBackAloneWithTheSameRank) {
  // The worker waits until the actor has come back, in the same round, while the other actor lives on.
  const Finished finished = RunTandem(
      Args({"--learners", "1", "--actors", "2"},
           absl::StrCat("if [ $TANDEM_ROLE = actor ]; then echo life "
                        "$ROLE_RANK.${TANDEM_PROCESS_RESTARTS:-0}.$TANDEM_EPOCH; "
                        "if [ $ROLE_RANK.$TANDEM_PROCESS_RESTARTS = 1. ]; then kill -9 $$; fi; exec ",
                        kForever, "; fi; until grep -q life.1.1.1 ", dir_.File("actor-1.log"),
                        " && grep -q life ", dir_.File("actor-0.log"), "; do :; done; echo learned")),
      Mark());
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(Lines(finished.out), UnorderedElementsAre("[actor/0] life 0.0.1", "[actor/1] life 1.0.1",
                                                        "[actor/1] life 1.1.1", "[learner/0] learned"));
  EXPECT_THAT(finished.err,
              ContainsRegex("actor/1 \\(pid [0-9]+\\) was killed by signal 9 \\(SIGKILL\\); starting it "
                            "again in 500ms \\(1 of 10\\)"));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RestartTest, AProcessThatDiesTooOftenEndsTheJob) {
  const Finished finished =
      RunTandem(Args({"--workers", "2", "--restart", "worker=alone:1"},
                     absl::StrCat("if [ $RANK = 0 ]; then echo no luck; exit 5; fi; exec ", kForever)),
                Mark());
  EXPECT_EQ(finished.exit_code, 5);
  EXPECT_THAT(finished.err, AllOf(HasSubstr("(1 of 1)"), HasSubstr("--restart worker=alone:1"),
                                  ContainsRegex("worker/0 .* exited with code 5; stopping the job")));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RestartTest, InAJobThatReformsTheLivingGoOn) {
  // Worker 0 is never restarted; worker 1 is started again for the second round.
  const Finished finished = RunTandem(
      Args({"--nproc-per-node", "2", "--max-restarts", "1", "--on-failure", "reform"},
           absl::StrCat(
               "echo life $RANK.$TANDEM_ASSIGNMENT.$TANDEM_EPOCH ${TANDEM_AGENT%:*}; if [ $RANK = 1 ]; then "
               "if [ $TANDEM_EPOCH = 1 ]; then until grep -q life ",
               dir_.File("worker-0.log"),
               "; do :; done; kill -9 $$; fi; exit 0; fi; until grep -q life.1.2.2 ",
               dir_.File("worker-1.log"), "; do :; done")),
      Mark());
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(Lines(finished.out),
              UnorderedElementsAre("[worker/0] life 0.1.1 unix", "[worker/1] life 1.1.1 unix",
                                   "[worker/1] life 1.2.2 unix"));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RestartTest, AnActorThatIsToComeBackWhileTheJobReformsComesBackOnce) {
  // Actor 0 dies, and before its pause is over worker 1 does, so that the next round starts both. Actor 1
  // dies in that round: when it is back, the pause of actor 0 is over, too.
  const std::string actor0 = dir_.File("actor-0.log"), worker1 = dir_.File("worker-1.log");
  const Finished finished = RunTandem(
      Args({"--workers", "2", "--actors", "2", "--restart", "actor=alone", "--max-restarts", "1",
            "--on-failure", "reform"},
           absl::StrCat("echo life $TANDEM_EPOCH $$; case $TANDEM_ROLE.$ROLE_RANK.$TANDEM_EPOCH in ",
                        "actor.0.1) exit 1;; ",  //
                        "actor.1.1) until grep -qs 'life 2' ", worker1, "; do :; done; exit 1;; ",
                        "actor.*) exec ", kForever, ";; ",  //
                        "worker.1.1) until grep -qs life ", actor0,
                        "; do :; done; pid=$(sed -n 's/.*life 1 //p' ", actor0,
                        "); while kill -0 $pid; do :; done 2>/dev/null; kill -9 $$;; esac; ",
                        "until grep -qs 'life 2' ", dir_.File("actor-1.log"), "; do :; done")),
      Mark());
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(Lines(ReadFile(actor0)).size(), 2u) << ReadFile(actor0) << finished.err;
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RestartTest, TheDeadAreNoZombies) {
  TandemProcess tandem(
      Args({"--workers", "1", "--actors", "1", "--restart", "actor=alone"},
           absl::StrCat("if [ $TANDEM_ROLE = worker ]; then exec ", kForever,
                        "; fi; if [ -z $TANDEM_PROCESS_RESTARTS ]; then exit 1; fi; echo second life; exec ",
                        kForever)),
      Mark());
  ASSERT_TRUE(tandem.WaitForOutput("second life")) << tandem.err();
  int children = 0;
  for (const absl::string_view child :
       absl::StrSplit(ReadFile(absl::StrCat("/proc/", tandem.pid(), "/task/", tandem.pid(), "/children")),
                      ' ', absl::SkipEmpty())) {
    pid_t pid;
    if (!absl::SimpleAtoi(child, &pid)) continue;
    ++children;
    EXPECT_TRUE(testing::IsAlive(pid)) << child;
  }
  EXPECT_EQ(children, 3);  // the worker, the actor, the guardian
  tandem.Signal(SIGTERM);
  EXPECT_EQ(tandem.Wait(), 143);
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RestartTest, KillingTheLauncherOfARestartedJobLeavesNothing) {
  TandemProcess tandem(
      Args(
          {"--nproc-per-node", "2", "--max-restarts", "1"},
          absl::StrCat("if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then exit 1; fi; echo up $RANK; ", kForever)),
      Mark());
  for (const char* up : {"up 0", "up 1"}) ASSERT_TRUE(tandem.WaitForOutput(up)) << tandem.err();
  tandem.Signal(SIGKILL);
  EXPECT_EQ(tandem.Wait(), 137);
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RestartTest, InterruptedWhileAProcessWaitsForItsRestartItStops) {
  TandemProcess tandem(Args({"--workers", "2", "--restart", "worker=alone"},
                            absl::StrCat("if [ $RANK = 0 ]; then exit 1; fi; exec ", kForever)),
                       Mark());
  ASSERT_TRUE(tandem.WaitForOutput("starting it again"));
  tandem.Signal(SIGINT);
  EXPECT_EQ(tandem.Wait(), 130);
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RestartTest, APortThatWasTakenIsExplained) {
  const Finished finished =
      RunTandem(Args({}, "echo 'RuntimeError: bind: Address already in use' >&2; exit 1"), Mark());
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("a port was taken. MASTER_PORT ("));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RestartTest, AParameterServerThatComesBackAloneIsSaidToBeEmpty) {
  TandemProcess tandem(Args({"--ps", "1", "--workers", "1", "--restart", "ps=alone"},
                            absl::StrCat("echo up; exec ", kForever)),
                       Mark());
  ASSERT_TRUE(tandem.WaitForOutput("[worker/0] up")) << tandem.err();
  ASSERT_TRUE(tandem.WaitForOutput("serving at ")) << tandem.err();
  const pid_t server = WithVariable("TANDEM_PS_INDEX=0", "TANDEM_ROLE=ps");
  ASSERT_GT(server, 0);
  ::kill(server, SIGKILL);
  EXPECT_TRUE(tandem.WaitForOutput("ps/0 comes back with empty tables and at another address"))
      << tandem.err();
  tandem.Signal(SIGTERM);
  EXPECT_EQ(tandem.Wait(), 143);
  EXPECT_TRUE(NoLeaks());
}

}  // namespace
}  // namespace tandem::launcher
