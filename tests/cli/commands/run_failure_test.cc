// SPDX-License-Identifier: Apache-2.0
// Tests tandem run when a process fails or the user interrupts it: one line names the cause, the exit code is
// passed on, and no process is left.

#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProcessesMarked;
using testing::ReadFile;
using testing::RunTandem;
using testing::TandemProcess;
using testing::WaitUntilGone;
using testing::WaitUntilNoneMarked;

// Every process of a test inherits this variable, whichever program it executes.
class RunFailureTest : public ::testing::Test {
 protected:
  std::map<std::string, std::string> Mark() const { return {{"TANDEM_TEST_MARK", dir_.path()}}; }
  bool NoLeaks() const { return WaitUntilNoneMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path())); }
  std::vector<std::string> Args(std::vector<std::string> flags, const std::string& script) const {
    std::vector<std::string> args = {"run", "--log-dir", dir_.path()};
    args.insert(args.end(), flags.begin(), flags.end());
    for (const char* word : {"--", "/bin/sh", "-c"}) args.push_back(word);
    args.push_back(script);
    return args;
  }
  // Returns the number that follows `label` in the output.
  static pid_t PidAfter(const std::string& text, absl::string_view label) {
    const size_t at = text.find(std::string(label));
    pid_t pid = 0;
    if (at == std::string::npos) return 0;
    const size_t begin = at + label.size();
    return absl::SimpleAtoi(text.substr(begin, text.find_first_not_of("0123456789", begin) - begin), &pid)
               ? pid
               : 0;
  }
  static int Count(absl::string_view text, absl::string_view part) {
    int count = 0;
    for (size_t at = text.find(part); at != absl::string_view::npos; at = text.find(part, at + 1)) ++count;
    return count;
  }

  testing::TempDir dir_;
};

// A command that never ends, in a process of its own below the shell.
constexpr char kForever[] = "tail -f /dev/null";

TEST_F(RunFailureTest, TheFirstFailureIsNamedAndItsCodePassedOn) {
  const Finished finished =
      RunTandem(Args({"--workers", "3"},
                     absl::StrCat("if [ $RANK = 1 ]; then echo last words >&2; exit 3; fi; ", kForever)),
                Mark());
  EXPECT_EQ(finished.exit_code, 3);
  EXPECT_THAT(finished.err, ContainsRegex("worker/1 \\(pid [0-9]+\\) exited with code 3; stopping the job"));
  EXPECT_THAT(finished.err, HasSubstr("  | last words"));
  EXPECT_EQ(Count(finished.err, "stopping the job"), 1);
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RunFailureTest, ADeathBySignalIsNamed) {
  const Finished finished = RunTandem(
      Args({"--workers", "2"}, absl::StrCat("if [ $RANK = 1 ]; then kill -9 $$; fi; ", kForever)), Mark());
  EXPECT_EQ(finished.exit_code, 137);
  EXPECT_THAT(
      finished.err,
      ContainsRegex("worker/1 \\(pid [0-9]+\\) was killed by signal 9 \\(SIGKILL\\); stopping the job"));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RunFailureTest, ADeathBySignalIsTheCauseOfErrorsThatCameJustBefore) {
  // Worker 0 fails the moment worker 1 is dying: its error is the secondary one.
  const std::string fifo = dir_.File("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const Finished finished = RunTandem(
      Args({"--workers", "2"}, absl::StrCat("if [ $RANK = 1 ]; then echo $$ >", fifo, "; ", kForever,
                                            "; fi; read pid <", fifo, "; kill -SEGV $pid; exit 1")),
      Mark());
  EXPECT_EQ(finished.exit_code, 139);
  EXPECT_THAT(finished.err, ContainsRegex("worker/1 \\(pid [0-9]+\\) was killed by signal 11 \\(SIGSEGV\\)"));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RunFailureTest, OnlyTheLastTenLinesAreShown) {
  const Finished finished =
      RunTandem(Args({}, "i=0; while [ $i -lt 30 ]; do echo number $i.; i=$((i+1)); done; exit 1"), Mark());
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_EQ(Count(finished.err, "  | number"), 10);
  EXPECT_THAT(finished.err,
              AllOf(HasSubstr("  | number 20."), HasSubstr("  | number 29."), Not(HasSubstr("number 19."))));
}

TEST_F(RunFailureTest, AServerThatIsKilledEndsTheJob) {
  TandemProcess tandem(Args({"--ps", "2", "--workers", "2"}, kForever), Mark());
  for (const char* server : {"ps/0", "ps/1"})
    ASSERT_TRUE(tandem.WaitForOutput(absl::StrCat("[", server, "] "))) << tandem.err();
  const std::vector<pid_t> all = ProcessesMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path()));
  pid_t victim = 0;
  for (pid_t pid : all) {
    if (absl::StrContains(ReadFile(absl::StrCat("/proc/", pid, "/environ")), "TANDEM_PS_INDEX=1"))
      victim = pid;
  }
  ASSERT_NE(victim, 0);
  ::kill(victim, SIGKILL);
  EXPECT_EQ(tandem.Wait(), 137);
  EXPECT_THAT(tandem.err(),
              HasSubstr(absl::StrCat("ps/1 (pid ", victim, ") was killed by signal 9 (SIGKILL)")));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RunFailureTest, ControlCStopsEverything) {
  for (const auto& [signal, code] : std::vector<std::pair<int, int>>{{SIGINT, 130}, {SIGTERM, 143}}) {
    TandemProcess tandem(Args({"--ps", "1", "--workers", "2"}, absl::StrCat("echo up $RANK; ", kForever)),
                         Mark());
    for (const char* up : {"up 0", "up 1", "[ps/0] "}) ASSERT_TRUE(tandem.WaitForOutput(up)) << tandem.err();
    tandem.Signal(signal);
    EXPECT_EQ(tandem.Wait(), code);
    EXPECT_THAT(tandem.err(),
                HasSubstr("tandem run: stopping on SIG"));  // it was no plain death by the signal
    EXPECT_TRUE(NoLeaks());
  }
}

TEST_F(RunFailureTest, AProcessThatIgnoresSigtermIsKilledAfterTheGrace) {
  TandemProcess tandem(
      Args({"--grace", "0.2"}, absl::StrCat("trap '' TERM INT; echo up; while :; do ", kForever, "; done")),
      Mark());
  ASSERT_TRUE(tandem.WaitForOutput("up"));
  tandem.Signal(SIGINT);
  EXPECT_EQ(tandem.Wait(), 130);
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RunFailureTest, AskedTwiceItDoesNotWaitForTheGrace) {
  TandemProcess tandem(
      Args({"--grace", "3000"}, absl::StrCat("trap '' TERM INT; echo up; while :; do ", kForever, "; done")),
      Mark());
  ASSERT_TRUE(tandem.WaitForOutput("up"));
  tandem.Signal(SIGINT);
  ASSERT_TRUE(tandem.WaitForOutput("stopping on SIGINT"));
  tandem.Signal(SIGINT);
  EXPECT_EQ(tandem.Wait(), 130);
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RunFailureTest, KillingTheLauncherKillsEverythingItStarted) {
  TandemProcess tandem(
      Args({"--ps", "1", "--workers", "2"}, absl::StrCat(kForever, " & echo up $RANK; wait")), Mark());
  for (const char* up : {"up 0", "up 1", "[ps/0] "}) ASSERT_TRUE(tandem.WaitForOutput(up)) << tandem.err();
  EXPECT_GE(ProcessesMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path())).size(),
            6u);  // shells, tails, server, launcher
  tandem.Signal(SIGKILL);
  EXPECT_EQ(tandem.Wait(), 137);
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RunFailureTest, TheTimeOutEndsTheJob) {
  const Finished finished = RunTandem(Args({"--timeout", "0.3"}, kForever), Mark());
  EXPECT_EQ(finished.exit_code, 124);
  EXPECT_THAT(finished.err, HasSubstr("the job did not end within 300ms"));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RunFailureTest, AnOutputThatNobodyReadsDoesNotBlockTheStop) {
  // More output than fits into the pipe and the launcher's buffer. The test reads nothing meanwhile.
  TandemProcess tandem(Args({"--grace", "0.2"},
                            absl::StrCat("echo up; yes | head -c 8000000; echo done > ", dir_.File("done"))),
                       Mark());
  ASSERT_TRUE(tandem.WaitForOutput("up"));
  tandem.Signal(SIGTERM);
  ASSERT_TRUE(WaitUntilGone(tandem.pid()) || tandem.Wait() == 143);
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RunFailureTest, ProgramsThatCannotRunAreNamed) {
  Finished finished = RunTandem({"run", "--log-dir", dir_.path(), "--", "no-such-program"});
  EXPECT_EQ(finished.exit_code, 127);
  EXPECT_THAT(finished.err, HasSubstr("there is no program 'no-such-program' in PATH"));
  finished = RunTandem({"run", "--log-dir", dir_.path(), "--", "/no/such/program"});
  EXPECT_EQ(finished.exit_code, 127);
  EXPECT_THAT(finished.err, HasSubstr("there is no program '/no/such/program'"));

  const std::string text = dir_.File("text");
  std::ofstream(text) << "no program\n";
  finished = RunTandem({"run", "--log-dir", dir_.path(), "--", text});
  EXPECT_EQ(finished.exit_code, 126);
  EXPECT_THAT(finished.err, HasSubstr("is not executable"));
  ::chmod(text.c_str(), 0755);  // executable, but of no known format
  finished = RunTandem({"run", "--ps", "1", "--log-dir", dir_.path(), "--", text}, Mark());
  EXPECT_NE(finished.exit_code, 0);
  EXPECT_THAT(finished.err, AllOf(HasSubstr("cannot start worker/0"), HasSubstr(text)));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(RunFailureTest, ALogDirectoryThatCannotBeIsNamed) {
  const std::string file = dir_.File("file");
  std::ofstream(file) << "x";
  const Finished finished = RunTandem({"run", "--log-dir", absl::StrCat(file, "/logs"), "--", "true"});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, AllOf(HasSubstr("cannot make the log directory"), HasSubstr(file)));
}

}  // namespace
}  // namespace tandem::cli
