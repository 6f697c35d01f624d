// SPDX-License-Identifier: Apache-2.0
// Processes of each kind that hang (SIGSTOP) under `tandem run`: who ends them, what is said, and what
// becomes of the job.

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/json.h"
#include "cluster/environment.h"
#include "cluster/membership/job_monitor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/launcher/joined_process.h"
#include "tests/testing/processes/processes.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

using Json = nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::kTestTimeout;
using ::testing::Not;
using testing::ProcessesMarked;
using testing::ReadFile;
using testing::TandemProcess;
using testing::WaitUntilNoneMarked;

// The program of jobs without a model: joins its job, sends heartbeats, and leaves the job once the file
// TEST_DONE exists. TEST_JOINS=no: does not join. TEST_HEARTBEATS=no: sends none. TEST_IGNORES=SIGTERM.
TEST(Member, DISABLED_WaitsForTheFile) {
  const auto is = [](const char* name, absl::string_view value) {
    const char* const text = std::getenv(name);
    return text != nullptr && text == value;
  };
  std::unique_ptr<cluster::JobStore> store;
  std::unique_ptr<cluster::JobMonitor> monitor;
  if (is("TEST_IGNORES", "SIGTERM")) ::signal(SIGTERM, SIG_IGN);
  if (!is("TEST_JOINS", "no")) {
    const auto env = cluster::Environment::FromEnv();
    ASSERT_TRUE(env.ok()) << env.status();
    auto opened = cluster::OpenStore(*env, kTestTimeout);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store = *std::move(opened);
    if (!is("TEST_HEARTBEATS", "no")) {
      auto started =
          cluster::JobMonitor::Start(store->channel(), {.member = env->member(), .lease = env->lease},
                                     [](const cluster::JobState& state) {
                                       if (state.failed) std::_Exit(1);
                                     });
      ASSERT_TRUE(started.ok()) << started.status();
      monitor = *std::move(started);
    }
  }
  while (!std::filesystem::exists(std::getenv("TEST_DONE"))) absl::SleepFor(absl::Milliseconds(10));
  if (monitor != nullptr) {
    EXPECT_TRUE(monitor->Leave().ok());
  }
}

class SilentProcessTest : public ::testing::Test {
 protected:
  // Longer than the pauses of a busy machine.
  static constexpr char kLease[] = "2";

  // Starts a job of `flags` whose program is Member.
  void Launch(std::vector<std::string> flags) {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe");
    LaunchProgram(std::move(flags), {self, "--gtest_filter=Member.DISABLED_WaitsForTheFile",
                                     "--gtest_also_run_disabled_tests"});
  }
  void LaunchProgram(std::vector<std::string> flags, const std::vector<std::string>& program) {
    std::vector<std::string> args = {"run", "--log-dir", dir_.File("logs"), "--lease", kLease};
    args.insert(args.end(), flags.begin(), flags.end());
    args.push_back("--");
    args.insert(args.end(), program.begin(), program.end());
    std::map<std::string, std::string> variables = variables_;
    variables["TANDEM_TEST_MARK"] = dir_.path();
    variables["TEST_DONE"] = dir_.File("done");
    tandem_ = std::make_unique<TandemProcess>(args, variables, dir_.path());
  }
  void LetThemFinish() { std::ofstream(dir_.File("done")) << "yes"; }

  // Returns the process that has joined and has these variables ("NAME=value"). Waits for it.
  pid_t Joined(const std::vector<std::string>& wanted) {
    const pid_t pid = JoinedProcess(dir_.path(), wanted);
    EXPECT_GT(pid, 0) << ::testing::PrintToString(wanted) << " has not joined:\n" << tandem_->err();
    return pid;
  }
  // Stops the process and waits until the launcher says that it has ended it as `name`. Records how long that
  // took.
  void Hang(pid_t pid, const std::string& name) {
    ASSERT_GT(pid, 0);
    const absl::Time begin = MonotonicNow();
    ASSERT_EQ(::kill(pid, SIGSTOP), 0);
    ASSERT_TRUE(tandem_->WaitForOutput(absl::StrCat(name, " (pid ", pid, ") has been silent for ")))
        << tandem_->err();
    const absl::Duration took = MonotonicNow() - begin;
    EXPECT_GE(took, absl::Seconds(1.8)) << "sooner than the lease";
    std::cout << name << " was found after " << took << std::endl;
    ASSERT_TRUE(tandem_->WaitForOutput("(hung; lease 2s), ended by the launcher")) << tandem_->err();
    EXPECT_THAT(tandem_->err(), ContainsRegex(absl::StrCat(name, " .pid ", pid,
                                                           ". has been silent for .* .lease 2s.: state T "
                                                           ".stopped..*; it hangs, and is ended")));
    EXPECT_THAT(tandem_->err(), Not(HasSubstr("signal 9")));
  }
  // Waits until the only shard has a follower in sync.
  bool InSync() const {
    for (const absl::Time end = MonotonicNow() + kTestTimeout; MonotonicNow() < end;) {
      const testing::Finished status =
          testing::RunTandem({"ps", "status", "--job", dir_.File("logs"), "--json"});
      const Json all = ParseJson(status.out);
      if (!all.is_object()) continue;
      for (const Json& shard : all["shards"]) {
        if (shard.contains("placement") && shard["placement"].value("in_sync", Json::array()).size() == 1) {
          return true;
        }
      }
    }
    return false;
  }
  bool NoLeaks() const { return WaitUntilNoneMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path())); }
  int Ends() {
    const int code = tandem_->Wait();
    EXPECT_TRUE(NoLeaks());
    return code;
  }

  testing::TempDir dir_;
  std::map<std::string, std::string> variables_;
  std::unique_ptr<TandemProcess> tandem_;
};

TEST_F(SilentProcessTest, AWorkerThatHangsEndsTheJobUnderItsName) {
  Launch({"--workers", "2"});
  const pid_t other = Joined({"RANK=0"});
  Hang(Joined({"RANK=1"}), "worker/1");
  EXPECT_EQ(Ends(), 128 + SIGKILL);
  EXPECT_THAT(tandem_->err(), ContainsRegex("worker/1 .pid [0-9]+. was silent for [2-9].*ended by the "
                                            "launcher; stopping the job"));
  EXPECT_FALSE(testing::IsAlive(other));
}

TEST_F(SilentProcessTest, WithRestartsOfTheJobItIsStartedAgain) {
  Launch({"--workers", "2", "--max-restarts", "1"});
  Joined({"RANK=0"});
  Hang(Joined({"RANK=1"}), "worker/1");
  Joined({"RANK=1", "TORCHELASTIC_RESTART_COUNT=1"});
  LetThemFinish();
  EXPECT_EQ(Ends(), 0) << tandem_->err();
  EXPECT_THAT(tandem_->err(), HasSubstr("ended by the launcher; starting the job again (restart 1 of 1)"));
}

TEST_F(SilentProcessTest, AWorkerThatIsRestartedAloneComesBackAndEndsNobodyElse) {
  Launch({"--workers", "2", "--restart", "worker=alone"});
  const pid_t other = Joined({"RANK=0"});
  Hang(Joined({"RANK=1"}), "worker/1");
  Joined({"RANK=1", "TANDEM_PROCESS_RESTARTS=1"});
  EXPECT_TRUE(testing::IsAlive(other));
  LetThemFinish();
  EXPECT_EQ(Ends(), 0) << tandem_->err();
  EXPECT_THAT(tandem_->err(), HasSubstr("ended by the launcher; starting it again in 500ms (1 of 10)"));
}

TEST_F(SilentProcessTest, AProgramUnderAShellIsFoundAsWell) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  LaunchProgram({"--workers", "2", "--restart", "worker=alone"},
                {"/bin/sh", "-c",
                 absl::StrCat(self,
                              " --gtest_filter=Member.DISABLED_WaitsForTheFile "
                              "--gtest_also_run_disabled_tests; echo over; exit $?")});
  Joined({"RANK=0"});
  const pid_t pid = Joined({"RANK=1"});
  ASSERT_GT(pid, 0);
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  ASSERT_TRUE(tandem_->WaitForOutput("ended by the launcher; starting it again")) << tandem_->err();
  EXPECT_THAT(tandem_->err(), ContainsRegex(absl::StrCat("worker/1 .pid [0-9]+, its process ", pid,
                                                         ". has been silent for ")));
  Joined({"RANK=1", "TANDEM_PROCESS_RESTARTS=1"});
  LetThemFinish();
  EXPECT_EQ(Ends(), 0) << tandem_->err();
}

TEST_F(SilentProcessTest, AProcessThatHasNotJoinedMayBeSilent) {
  variables_["TEST_JOINS"] = "no";
  Launch({"--role", "helper=1", "--workers", "2", "--restart", "worker=alone"});
  // The helper and the workers do not beat, and a server does not hang: there is nobody to end.
  pid_t helper = 0;
  for (const absl::Time end = MonotonicNow() + kTestTimeout; helper == 0 && MonotonicNow() < end;) {
    for (const pid_t pid : ProcessesMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path()))) {
      if (absl::StrContains(ReadFile(absl::StrCat("/proc/", pid, "/environ")), "TANDEM_ROLE=helper")) {
        helper = pid;
      }
    }
  }
  ASSERT_GT(helper, 0);
  ASSERT_EQ(::kill(helper, SIGSTOP), 0);
  absl::SleepFor(absl::Seconds(5));  // two leases: nothing must happen, so there is no event
  ASSERT_EQ(::kill(helper, SIGCONT), 0);
  LetThemFinish();
  EXPECT_EQ(Ends(), 0) << tandem_->err();
  EXPECT_THAT(tandem_->err(), Not(HasSubstr("silent")));
}

TEST_F(SilentProcessTest, APlainServerThatHangsEndsTheJob) {
  Launch({"--ps", "2", "--workers", "1"});
  Joined({"RANK=0"});
  Joined({"TANDEM_PS_INDEX=1"});
  Hang(Joined({"TANDEM_PS_INDEX=0"}), "ps/0");
  EXPECT_EQ(Ends(), 128 + SIGKILL);
  EXPECT_THAT(tandem_->err(), ContainsRegex("ps/0 .* ended by the launcher; stopping the job"));
}

TEST_F(SilentProcessTest, AServerWithALogComesBackWithIt) {
  Launch({"--ps", "1", "--wal-dir", dir_.File("wal"), "--workers", "1"});
  const pid_t worker = Joined({"RANK=0"});
  Hang(Joined({"TANDEM_PS_INDEX=0"}), "ps/0");
  EXPECT_TRUE(tandem_->WaitForOutput("ps/0 comes back with its log")) << tandem_->err();
  Joined({"TANDEM_PS_INDEX=0", "TANDEM_PROCESS_RESTARTS=1"});
  EXPECT_TRUE(testing::IsAlive(worker));
  LetThemFinish();
  EXPECT_EQ(Ends(), 0) << tandem_->err();
}

TEST_F(SilentProcessTest, ACopyOfAServerComesBackAsANewOne) {
  for (const char* copy : {"0", "1"}) {
    std::filesystem::remove(dir_.File("done"));
    Launch({"--ps", "1", "--ps-followers", "1", "--workers", "2"});
    const pid_t worker = Joined({"RANK=0"});
    Joined({"RANK=1"});
    Joined({"TANDEM_PS_COPY=0"});
    Joined({"TANDEM_PS_COPY=1"});
    // Before that, the loss of the primary is the loss of the shard.
    ASSERT_TRUE(InSync()) << tandem_->err();
    Hang(Joined({absl::StrCat("TANDEM_PS_COPY=", copy)}), absl::StrCat("ps/", copy));
    EXPECT_TRUE(tandem_->WaitForOutput(absl::StrCat("ps/", copy, " comes back as a new copy")))
        << tandem_->err();
    EXPECT_TRUE(testing::IsAlive(worker));
    LetThemFinish();
    EXPECT_EQ(Ends(), 0) << tandem_->err();
  }
}

TEST_F(SilentProcessTest, OfReinforcementLearningOnlyLearnerAndReplayEndTheJob) {
  const std::vector<std::string> kProgram = {TANDEM_BINARY,
                                             "rl",
                                             absl::StrCat(TANDEM_JOBS_DIR, "/cartpole_impala.yaml"),
                                             "--set",
                                             "actors.inference=server",
                                             "--set",
                                             "stop.env_steps=1000000000",
                                             "--set",
                                             absl::StrCat("model=", dir_.File("model.safetensors"))};
  for (const char* role : {"learner", "replay"}) {
    LaunchProgram({"--learners", "1", "--replay", "1", "--actors", "2", "--role", "inference=1"}, kProgram);
    for (const char* other : {"learner", "replay", "inference"})
      Joined({absl::StrCat("TANDEM_ROLE=", other)});
    Joined({"TANDEM_ROLE=actor", "ROLE_RANK=0"});
    if (absl::string_view(role) == "learner") {
      Hang(Joined({"TANDEM_ROLE=actor", "ROLE_RANK=1"}), "actor/1");
      Joined({"TANDEM_ROLE=actor", "ROLE_RANK=1", "TANDEM_PROCESS_RESTARTS=1"});
      Hang(Joined({"TANDEM_ROLE=inference"}), "inference/0");
      Joined({"TANDEM_ROLE=inference", "TANDEM_PROCESS_RESTARTS=1"});
      EXPECT_THAT(tandem_->err(), Not(HasSubstr("stopping the job")));
    } else {
      Joined({"TANDEM_ROLE=actor", "ROLE_RANK=1"});
    }
    Hang(Joined({absl::StrCat("TANDEM_ROLE=", role)}), absl::StrCat(role, "/0"));
    EXPECT_EQ(Ends(), 128 + SIGKILL);
    EXPECT_THAT(tandem_->err(),
                ContainsRegex(absl::StrCat(role, "/0 .* ended by the launcher; stopping the job")));
  }
}

TEST_F(SilentProcessTest, AProcessInADebuggerIsNotEnded) {
  variables_["TEST_HEARTBEATS"] = "no";  // the job's store does not know of the debugger
  Launch({"--workers", "3", "--restart", "worker=alone"});
  Joined({"RANK=0"});
  const pid_t debugged = Joined({"RANK=1"}), hung = Joined({"RANK=2"});
  ASSERT_GT(debugged, 0);
  // A debugger holds every thread.
  std::vector<pid_t> threads;
  for (const auto& thread : std::filesystem::directory_iterator(absl::StrCat("/proc/", debugged, "/task"))) {
    threads.push_back(std::stoi(thread.path().filename()));
  }
  for (const pid_t thread : threads) {
    if (::ptrace(PTRACE_ATTACH, thread, nullptr, nullptr) != 0)
      GTEST_SKIP() << "this machine allows no ptrace";
    ASSERT_EQ(::waitpid(thread, nullptr, __WALL), thread);
  }
  ASSERT_TRUE(
      tandem_->WaitForOutput(absl::StrCat("process ", ::getpid(), " debugs it, so it is not taken for hung")))
      << tandem_->err();
  // It has been silent for longer than a process that hangs from now on.
  Hang(hung, "worker/2");
  EXPECT_TRUE(testing::IsAlive(debugged));
  for (const pid_t thread : threads) ASSERT_EQ(::ptrace(PTRACE_DETACH, thread, nullptr, nullptr), 0);
  LetThemFinish();
  EXPECT_EQ(Ends(), 0) << tandem_->err();
  EXPECT_THAT(tandem_->err(), Not(ContainsRegex("worker/1 .pid [0-9]+. was silent for")));
}

TEST_F(SilentProcessTest, ProcessesThatAreSilentTogetherAreNotEnded) {
  variables_["TEST_HEARTBEATS"] = "no";
  Launch({"--workers", "3"});
  std::vector<pid_t> all;
  for (const char* rank : {"RANK=0", "RANK=1", "RANK=2"}) all.push_back(Joined({rank}));
  for (const pid_t pid : all) ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  ASSERT_TRUE(tandem_->WaitForOutput("3 of 3 processes of this node have been silent together"))
      << tandem_->err();
  for (const pid_t pid : all) ASSERT_EQ(::kill(pid, SIGCONT), 0);
  LetThemFinish();
  EXPECT_EQ(Ends(), 0) << tandem_->err();
  EXPECT_THAT(tandem_->err(), Not(HasSubstr("ended by the launcher")));
}

TEST_F(SilentProcessTest, ALauncherThatWasStoppedItselfEndsNobody) {
  variables_["TEST_HEARTBEATS"] = "no";  // the launcher serves the store, so they would miss it
  Launch({"--workers", "3", "--restart", "worker=alone"});
  std::vector<pid_t> all;
  for (const char* rank : {"RANK=0", "RANK=1", "RANK=2"}) all.push_back(Joined({rank}));
  // One is stopped with the launcher for two leases, and goes on after it.
  ASSERT_EQ(::kill(all[1], SIGSTOP), 0);
  tandem_->Signal(SIGSTOP);
  absl::SleepFor(absl::Seconds(4));
  tandem_->Signal(SIGCONT);
  ASSERT_EQ(::kill(all[1], SIGCONT), 0);
  // Whoever hangs from now on is ended, so the launcher has looked at all since.
  Hang(all[2], "worker/2");
  EXPECT_TRUE(testing::IsAlive(all[1]));
  LetThemFinish();
  EXPECT_EQ(Ends(), 0) << tandem_->err();
  EXPECT_THAT(tandem_->err(), Not(ContainsRegex("worker/[01] .pid [0-9]+. was silent for")));
}

}  // namespace
}  // namespace tandem::launcher
