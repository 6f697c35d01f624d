// SPDX-License-Identifier: Apache-2.0
// A launcher whose SIGKILL has no effect, as on a process that hangs in the kernel.

#include "launcher/beat_watch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/node_agent.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/rendezvous_handler.h"
#include "launcher/rendezvous_options.h"
#include "tests/launcher/joined_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLease = absl::Seconds(2);

class LostProcessTest : public ::testing::Test {
 protected:
  // Starts a launcher as a process of its own, which must have only one thread. Its program is Member of
  // silent_process_test.cc.
  void Launch(const RunFlags& flags) {
    ::setenv("TANDEM_TEST_MARK", dir_.path().c_str(), 1);
    ::setenv("TEST_DONE", dir_.File("done").c_str(), 1);
    ::setenv("TEST_IGNORES", "SIGTERM", 1);
    // The job's store would miss the process's heartbeats before the launcher takes it for lost.
    ::setenv("TEST_HEARTBEATS", "no", 1);
    launcher_ = ::fork();
    if (launcher_ == 0) ::_exit(Run(flags));
    for (const char* name : {"TANDEM_TEST_MARK", "TEST_DONE", "TEST_IGNORES", "TEST_HEARTBEATS"})
      ::unsetenv(name);
  }
  int Run(const RunFlags& flags) {
    ::dup2(::open(dir_.File("err").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600), STDERR_FILENO);
    const std::string self = std::filesystem::read_symlink("/proc/self/exe");
    auto processes = Processes::Create({SIGTERM});
    auto plan = MakePlan(
        flags, {self, "--gtest_filter=Member.DISABLED_WaitsForTheFile", "--gtest_also_run_disabled_tests"});
    auto meet = MakeRendezvousOptions(flags, flags.max_restarts);
    if (!processes.ok() || !plan.ok() || !meet.ok()) return 100;
    meet->rendezvous.run_id = "job";
    auto rendezvous = RendezvousHandler::Open(*meet);
    if (!rendezvous.ok()) return 101;
    NodeAgentOptions options;
    options.node.plan = *plan;
    options.node.run_id = "job";
    options.node.lease = kLease;
    options.node.self = self;
    options.node.log_dir = options.node.attempts_dir = dir_.path();
    options.node.spill_dir = dir_.File("spill");
    options.grace = grace_;
    (*processes)->ReplaceKill([](pid_t) {});
    auto agent = NodeAgent::Create(options, processes->get(), rendezvous->get());
    return agent.ok() ? (*agent)->Run() : 102;
  }
  std::string Said() const { return testing::ReadFile(dir_.File("err")); }
  bool WaitForText(const std::string& text) const {
    for (const absl::Time end = MonotonicNow() + testing::kTestTimeout; MonotonicNow() < end;) {
      if (absl::StrContains(Said(), text)) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }
  int Ends() {
    int status = 0;
    ::waitpid(launcher_, &status, 0);
    EXPECT_TRUE(testing::WaitUntilNoneMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path())));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  testing::TempDir dir_;
  absl::Duration grace_ = absl::Hours(1);  // whoever waits for the lost process waits for ever
  pid_t launcher_ = 0;
};

TEST_F(LostProcessTest, AJobThatNeedsItFailsWithItsNameAndIsNotStartedAgain) {
  RunFlags flags;
  flags.workers = 2;
  flags.max_restarts = 3;
  Launch(flags);
  ASSERT_GT(JoinedProcess(dir_.path(), {"RANK=0"}), 0) << Said();
  const pid_t hung = JoinedProcess(dir_.path(), {"RANK=1"});
  ASSERT_GT(hung, 0) << Said();
  ASSERT_EQ(::kill(hung, SIGSTOP), 0);
  ASSERT_TRUE(WaitForText("does not end after SIGKILL: state T (stopped)")) << Said();
  ASSERT_TRUE(WaitForText("; stopping the job")) << Said();
  // It ignores SIGTERM, and the other one does as well.
  std::ofstream(dir_.File("done")) << "yes";
  EXPECT_EQ(Ends(), 1) << Said();
  EXPECT_THAT(Said(),
              ContainsRegex(absl::StrCat("the job failed: worker/1 .pid ", hung,
                                         ". hangs, and does not end after SIGKILL; stopping the job")));
  EXPECT_THAT(Said(), Not(HasSubstr("starting the job again")));
}

TEST_F(LostProcessTest, NoSecondProcessIsStartedBesideOneThatWouldBeRestartedAlone) {
  RunFlags flags;
  flags.workers = 2;
  flags.restart = {"worker=alone"};
  Launch(flags);
  const pid_t other = JoinedProcess(dir_.path(), {"RANK=0"});
  ASSERT_GT(other, 0) << Said();
  const pid_t hung = JoinedProcess(dir_.path(), {"RANK=1"});
  ASSERT_GT(hung, 0) << Said();
  ASSERT_EQ(::kill(hung, SIGSTOP), 0);
  ASSERT_TRUE(WaitForText("it is lost, and no other process is started in its place")) << Said();
  EXPECT_TRUE(testing::IsAlive(other));
  std::ofstream(dir_.File("done")) << "yes";  // the other one finishes
  EXPECT_EQ(Ends(), 1) << Said();
  EXPECT_THAT(Said(), ContainsRegex("the job failed: worker/1 .pid [0-9]+. hangs, and does not end after "
                                    "SIGKILL; the others have finished; stopping the job"));
  EXPECT_THAT(Said(), Not(HasSubstr("starting it again")));
}

TEST_F(LostProcessTest, ALauncherThatStopsTheJobDoesNotWaitForIt) {
  grace_ = absl::Milliseconds(100);
  RunFlags flags;
  flags.workers = 2;
  Launch(flags);
  for (const char* rank : {"RANK=0", "RANK=1"}) ASSERT_GT(JoinedProcess(dir_.path(), {rank}), 0) << Said();
  ASSERT_EQ(::kill(launcher_, SIGTERM), 0);  // which the workers ignore, as they do SIGKILL
  EXPECT_EQ(Ends(), 128 + SIGTERM) << Said();
  for (const char* name : {"worker/0", "worker/1"}) {
    EXPECT_THAT(Said(),
                ContainsRegex(absl::StrCat(name, " .pid [0-9]+. does not end after SIGKILL: state ")));
  }
}

TEST_F(LostProcessTest, OneThatEndsAfterAllIsStartedAgain) {
  RunFlags flags;
  flags.workers = 2;
  flags.restart = {"worker=alone"};
  Launch(flags);
  ASSERT_GT(JoinedProcess(dir_.path(), {"RANK=0"}), 0) << Said();
  const pid_t hung = JoinedProcess(dir_.path(), {"RANK=1"});
  ASSERT_GT(hung, 0) << Said();
  ASSERT_EQ(::kill(hung, SIGSTOP), 0);
  ASSERT_TRUE(WaitForText("it is lost")) << Said();
  ASSERT_EQ(::kill(hung, SIGKILL), 0);  // the signal has its effect at last
  ASSERT_GT(JoinedProcess(dir_.path(), {"RANK=1", "TANDEM_PROCESS_RESTARTS=1"}), 0) << Said();
  std::ofstream(dir_.File("done")) << "yes";
  EXPECT_EQ(Ends(), 0) << Said();
  EXPECT_THAT(Said(), HasSubstr("ended by the launcher; starting it again in 500ms (1 of 10)"));
}

}  // namespace
}  // namespace tandem::launcher
