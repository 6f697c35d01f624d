// SPDX-License-Identifier: Apache-2.0
// Tests how `tandem run` stops a job: which signals end it, which processes get which signal, and what
// becomes of processes that have left their group.

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/launcher/forever.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::IsAlive;
using testing::ProcessesMarked;
using testing::ReadFile;
using testing::RunTandem;
using testing::TandemProcess;
using testing::WaitUntilNoneMarked;

class StopTest : public ::testing::Test {
 protected:
  std::map<std::string, std::string> Mark() const { return {{"TANDEM_TEST_MARK", dir_.path()}}; }
  bool NoLeaks() const { return WaitUntilNoneMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path())); }
  std::vector<std::string> Args(const std::vector<std::string>& flags, const std::string& script) const {
    std::vector<std::string> args = {"run", "--log-dir", dir_.path()};
    args.insert(args.end(), flags.begin(), flags.end());
    for (const std::string& word : {std::string("/bin/sh"), std::string("-c"), script}) args.push_back(word);
    return args;
  }
  // Returns the number between `label` and the next dot, or 0.
  static pid_t PidAfter(const std::string& text, absl::string_view label) {
    const size_t at = text.find(std::string(label));
    if (at == std::string::npos) return 0;
    const size_t begin = at + label.size(), end = text.find('.', begin);
    pid_t pid = 0;
    return end != std::string::npos && absl::SimpleAtoi(text.substr(begin, end - begin), &pid) ? pid : 0;
  }
  static int Count(absl::string_view text, absl::string_view part) {
    int count = 0;
    for (size_t at = text.find(part); at != absl::string_view::npos; at = text.find(part, at + 1)) ++count;
    return count;
  }

  testing::TempDir dir_;
};

TEST_F(StopTest, WorkersGetTheSignalThatTheLauncherGot) {
  for (const char* name : {"INT", "TERM", "HUP", "QUIT"}) {
    const int signal = absl::string_view(name) == "INT"    ? SIGINT
                       : absl::string_view(name) == "TERM" ? SIGTERM
                       : absl::string_view(name) == "HUP"  ? SIGHUP
                                                           : SIGQUIT;
    std::string script;
    for (const char* one : {"INT", "TERM", "HUP", "QUIT"}) {
      absl::StrAppend(&script, "trap 'echo got ", one, ".; exit 9' ", one, "; ");
    }
    TandemProcess tandem(Args({}, absl::StrCat(script, "echo up; while :; do sleep 0.05; done")), Mark());
    ASSERT_TRUE(tandem.WaitForOutput("up")) << tandem.err();
    tandem.Signal(signal);
    EXPECT_EQ(tandem.Wait(), 128 + signal);
    EXPECT_THAT(tandem.out(), HasSubstr(absl::StrCat("got ", name, ".")));
    EXPECT_TRUE(NoLeaks());
  }
}

TEST_F(StopTest, OnlyTheSignalsOfTheFlagEndTheJob) {
  const std::string script = "trap 'echo got it; exit 9' USR1; echo up; while :; do sleep 0.05; done";
  TandemProcess tandem(Args({"--signals-to-handle", "SIGUSR1,TERM"}, script), Mark());
  ASSERT_TRUE(tandem.WaitForOutput("up")) << tandem.err();
  tandem.Signal(SIGUSR1);
  EXPECT_EQ(tandem.Wait(), 128 + SIGUSR1);
  EXPECT_THAT(tandem.out(), HasSubstr("got it"));
  const Finished wrong = RunTandem(Args({"--signals-to-handle", "SIGKILL"}, "exit 0"), Mark());
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--signals-to-handle: 'SIGKILL' is none of SIGHUP, SIGINT"));
}

TEST_F(StopTest, UnderNohupTheJobSurvivesAHangUp) {
  // The outer launcher only starts a shell that ignores the signal, as nohup does, and becomes the inner one.
  const std::string worker = absl::StrCat("echo launcher $PPID.; until [ -e ", dir_.File("go"),
                                          " ]; do sleep 0.05; done; kill -HUP $$; echo alive");
  const std::string nohup = absl::StrCat("trap \"\" HUP; exec ", TANDEM_BINARY, " run --log-dir ",
                                         dir_.File("inner"), " -- /bin/sh -c '", worker, "'");
  TandemProcess tandem(Args({}, nohup), Mark());
  ASSERT_TRUE(tandem.WaitForLine([&](const std::string&) { return PidAfter(tandem.out(), "launcher ") > 0; }))
      << tandem.err();
  ASSERT_EQ(::kill(PidAfter(tandem.out(), "launcher "), SIGHUP), 0);
  std::ofstream(dir_.File("go")) << "go";
  EXPECT_EQ(tandem.Wait(), 0) << tandem.err();
  EXPECT_THAT(tandem.out(), HasSubstr("alive"));  // the program inherits it as well
}

TEST_F(StopTest, ProcessesInSessionsOfTheirOwnEndWithTheirWorker) {
  // The first one leaves the process group; the second one has no parent and no environment either.
  const std::string script =
      absl::StrCat("setsid /bin/sh -c 'echo first $$.; exec ", kForever, "' & ",
                   "(env -i setsid /bin/sh -c 'echo second $$.; exec ", kForever, "' &) ; ", "until [ -e ",
                   dir_.File("go"), " ]; do sleep 0.05; done");
  TandemProcess tandem(Args({}, script), Mark());
  ASSERT_TRUE(tandem.WaitForLine([&](const std::string&) {
    return PidAfter(tandem.out(), "first ") > 0 && PidAfter(tandem.out(), "second ") > 0;
  })) << tandem.err();
  const pid_t first = PidAfter(tandem.out(), "first "), second = PidAfter(tandem.out(), "second ");
  ASSERT_TRUE(IsAlive(first) && IsAlive(second)) << tandem.out();
  std::ofstream(dir_.File("go")) << "go";
  EXPECT_EQ(tandem.Wait(), 0) << tandem.err();
  EXPECT_FALSE(IsAlive(first));
  EXPECT_FALSE(IsAlive(second));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(StopTest, ProcessesInSessionsOfTheirOwnEndWithAKilledLauncher) {
  TandemProcess tandem(Args({}, absl::StrCat("setsid ", kForever, " & echo up; wait")), Mark());
  ASSERT_TRUE(tandem.WaitForOutput("up")) << tandem.err();
  tandem.Signal(SIGKILL);
  EXPECT_EQ(tandem.Wait(), 137);
  EXPECT_TRUE(NoLeaks());
}

TEST_F(StopTest, WorkersThatHaveSavedTheirStateMakeTheLauncherSaySo) {
  // The server must outlive the workers' last words to it.
  const std::string save =
      "trap 'sleep 0.1; echo saved $RANK; exit 75' TERM; echo up $RANK; while :; do sleep 0.05; done";
  TandemProcess tandem(Args({"--ps", "1", "--workers", "2", "--max-restarts", "3"}, save), Mark());
  for (const char* up : {"up 0", "up 1", "[ps/0] "}) ASSERT_TRUE(tandem.WaitForOutput(up)) << tandem.err();
  tandem.Signal(SIGTERM);
  EXPECT_EQ(tandem.Wait(), 75);
  EXPECT_THAT(tandem.out(), AllOf(HasSubstr("saved 0"), HasSubstr("saved 1")));
  EXPECT_THAT(tandem.err(), HasSubstr("the job can be run again"));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(StopTest, ServersOutliveTheWorkersAlsoIfEveryProcessIsSignalled) {
  // As systemd and Slurm do. The shell's own children are signalled, too, so it waits in a loop.
  const std::string save = absl::StrCat(
      "trap 'i=0; while [ $i -lt 20 ]; do sleep 0.02; i=$((i+1)); done; kill -0 $(cat ", dir_.File("server"),
      ") && echo the server lives; exit 75' TERM; echo up $RANK; while :; do sleep 0.05; done");
  TandemProcess tandem(Args({"--ps", "1", "--workers", "2"}, save), Mark());
  for (const char* up : {"up 0", "up 1", "serving at"}) ASSERT_TRUE(tandem.WaitForOutput(up)) << tandem.err();
  const std::vector<pid_t> all = ProcessesMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path()));
  for (const pid_t pid : all) {
    if (absl::StrContains(ReadFile(absl::StrCat("/proc/", pid, "/environ")), "TANDEM_PS_INDEX=0")) {
      std::ofstream(dir_.File("server")) << pid;
    }
  }
  for (const pid_t pid : all) ::kill(pid, SIGTERM);
  EXPECT_EQ(tandem.Wait(), 75) << tandem.err();
  EXPECT_EQ(Count(tandem.out(), "the server lives"), 2) << tandem.out() << tandem.err();
  EXPECT_TRUE(NoLeaks());
}

TEST_F(StopTest, ALaunchedServerObeysItsLauncherOnly) {
  TandemProcess tandem(Args({"--ps", "1", "--workers", "1"},
                            absl::StrCat("until [ -e ", dir_.File("go"), " ]; do sleep 0.05; done")),
                       Mark());
  ASSERT_TRUE(tandem.WaitForOutput("serving at")) << tandem.err();
  for (const pid_t pid : ProcessesMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path()))) {
    if (absl::StrContains(ReadFile(absl::StrCat("/proc/", pid, "/environ")), "TANDEM_PS_INDEX=0")) {
      ASSERT_EQ(::kill(pid, SIGTERM), 0);
    }
  }
  ASSERT_TRUE(tandem.WaitForOutput(absl::StrCat("SIGTERM of process ", ::getpid(), " is ignored")))
      << tandem.err();
  std::ofstream(dir_.File("go")) << "go";
  EXPECT_EQ(tandem.Wait(), 0) << tandem.err();
  EXPECT_TRUE(NoLeaks());
}

TEST_F(StopTest, OnlyTheMainRoleHasStateToSave) {
  const std::string save = "trap 'exit 75' TERM; echo up $RANK; while :; do sleep 0.05; done";
  TandemProcess tandem(
      Args({"--workers", "1", "--role", absl::StrCat("judge=1:/bin/sh -c 'echo sits; exec ", kForever, "'")},
           save),
      Mark());
  for (const char* up : {"up 0", "sits"}) ASSERT_TRUE(tandem.WaitForOutput(up)) << tandem.err();
  tandem.Signal(SIGTERM);
  EXPECT_EQ(tandem.Wait(), 75) << tandem.err();
}

TEST_F(StopTest, AWorkerThatDidNotSaveCountsMoreThanOnesThatDid) {
  const std::string save = "trap 'exit $((75 + RANK))' TERM; echo up $RANK; while :; do sleep 0.05; done";
  TandemProcess tandem(Args({"--workers", "2"}, save), Mark());
  for (const char* up : {"up 0", "up 1"}) ASSERT_TRUE(tandem.WaitForOutput(up)) << tandem.err();
  tandem.Signal(SIGTERM);
  EXPECT_EQ(tandem.Wait(), 143);
}

TEST_F(StopTest, AWorkerThatWishesToBeRunAgainIsNotRestartedHere) {
  const Finished finished = RunTandem(Args({"--max-restarts", "3"}, "echo once; exit 75"), Mark());
  EXPECT_EQ(finished.exit_code, 75);
  EXPECT_EQ(Count(finished.out, "once"), 1);
}

TEST_F(StopTest, ServersOutliveTheWorkersThatAreStopped) {
  const std::string script =
      absl::StrCat("trap 'for i in 1 2 3 4 5 6; do sleep 0.05; done; kill -0 $(cat ", dir_.File("judge"),
                   ") && echo the judge lives; exit 3' TERM; echo up; while :; do sleep 0.05; done");
  const std::string cluster = dir_.File("cluster.yaml");
  std::ofstream(cluster) << "roles:\n  judge: {program: [/bin/sh, -c, 'echo $$ > " << dir_.File("judge")
                         << "; echo sits; exec " << kForever << "'], serves: true}\n";
  TandemProcess tandem(Args({"--cluster", cluster, "--workers", "1"}, script), Mark());
  for (const char* up : {"up", "sits"}) ASSERT_TRUE(tandem.WaitForOutput(up)) << tandem.err();
  tandem.Signal(SIGTERM);
  EXPECT_EQ(tandem.Wait(), 143);
  EXPECT_THAT(tandem.out(), HasSubstr("the judge lives"));
  EXPECT_TRUE(NoLeaks());
}

}  // namespace
}  // namespace tandem::launcher
