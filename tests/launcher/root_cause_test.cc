// SPDX-License-Identifier: Apache-2.0
#include "launcher/root_cause.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

using ::testing::StartsWith;

class RootCauseTest : public ::testing::Test {
 protected:
  void SetUp() override { TANDEM_ASSERT_OK_AND_ASSIGN(processes_, Processes::Create({})); }

  std::string ErrorFile(const std::string& name) { return dir_.File(name.substr(7) + ".json"); }
  // Starts a process that runs until Kill.
  Process* Running(const std::string& name) { return Start(name, "exec sleep 1000"); }
  // Returns a process that has ended.
  Process* Failed(const std::string& name, const std::string& script) {
    Process* const process = Start(name, script);
    std::vector<Process*> ended;
    while (std::find(ended.begin(), ended.end(), process) == ended.end()) {
      const ProcessEvents seen = processes_->Wait(absl::InfiniteFuture(), -1, /*patient=*/false);
      ended.insert(ended.end(), seen.ended.begin(), seen.ended.end());
    }
    return process;
  }
  // Leaves an error file that was written at `second`.
  void Report(const std::string& name, int second) {
    const std::string path = ErrorFile(name);
    std::ofstream(path) << R"({"message": "an error of )" << name << "\"}";
    const timespec times[2] = {{second, 0}, {second, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  void NotePeer(const std::string& name) { std::ofstream(ErrorFile(name) + ".peer") << "rank 1 has left"; }

 private:
  Process* Start(const std::string& name, const std::string& script) {
    ProcessSpec spec;
    spec.name = name;
    spec.program = "/bin/sh";
    spec.args = {"sh", "-c", script};
    spec.files.log = dir_.File(name.substr(7) + ".log");
    spec.error_file = ErrorFile(name);
    absl::StatusOr<Process*> process = processes_->Start(std::move(spec));
    EXPECT_TRUE(process.ok()) << process.status();
    return process.value_or(nullptr);
  }
  testing::TempDir dir_;
  std::unique_ptr<Processes> processes_;
};

TEST_F(RootCauseTest, TheProcessThatTheReasonNamesIsTheCause) {
  const Process *one = Running("worker/1"), *ten = Running("worker/10");
  const RootCause spoke = FindRootCause({}, {ten, one}, "worker/1: no such file");
  EXPECT_EQ(spoke.line, "the job failed: worker/1: no such file");
  EXPECT_EQ(spoke.process, one);
  EXPECT_TRUE(spoke.explained);
  EXPECT_EQ(spoke.exit_code, 1);

  const RootCause silent = FindRootCause({}, {ten, one}, "worker/10 has been silent for 11s");
  EXPECT_EQ(silent.process, ten);
  EXPECT_FALSE(silent.explained);
}

TEST_F(RootCauseTest, AReasonWithoutAProcessHasNoCause) {
  const RootCause cause = FindRootCause({}, {Running("worker/1")}, "the store is gone");
  EXPECT_EQ(cause.line, "the job failed: the store is gone");
  EXPECT_EQ(cause.process, nullptr);
}

TEST_F(RootCauseTest, TheFirstOfProcessesThatSayNothingIsTheCause) {
  Process *two = Failed("worker/2", "exit 2"), *one = Failed("worker/1", "exit 1");
  const RootCause cause = FindRootCause({two, one}, {}, "");
  EXPECT_EQ(cause.process, two);
  EXPECT_EQ(cause.exit_code, 2);
  EXPECT_THAT(cause.line, StartsWith("worker/2 (pid "));
}

TEST_F(RootCauseTest, AProcessWhosePeerFailedIsAConsequenceThoughItEndedFirst) {
  NotePeer("worker/0");
  NotePeer("worker/2");
  Report("worker/0", 100);
  Process *zero = Failed("worker/0", "exit 1"), *two = Failed("worker/2", "kill -SEGV $$"),
          *one = Failed("worker/1", "exit 75");
  EXPECT_TRUE(IsConsequence(*zero));
  EXPECT_FALSE(IsConsequence(*one));
  EXPECT_EQ(FindRootCause({zero, two, one}, {}, "").process, one);
  EXPECT_EQ(FindRootCause({zero, two, one}, {}, "").exit_code, 75);
  // A consequence that a member reports is one as well.
  EXPECT_EQ(FindRootCause({zero, two, one}, {}, "worker/0: rank 1 has left").process, one);
  // Without the process that failed first, another one must do.
  EXPECT_EQ(FindRootCause({zero}, {}, "").process, zero);
}

TEST_F(RootCauseTest, TheOldestErrorFileIsTheCause) {
  Report("worker/0", 102);
  Report("worker/1", 101);
  Report("worker/2", 103);
  Process *zero = Failed("worker/0", "exit 1"), *one = Failed("worker/1", "exit 3"),
          *two = Failed("worker/2", "exit 1");
  EXPECT_EQ(FindRootCause({zero, one, two}, {}, "").process, one);
  EXPECT_EQ(FindRootCause({zero, one, two}, {}, "").exit_code, 3);
}

TEST_F(RootCauseTest, ACauseThatIsStillEndingHasLeftItsErrorFile) {
  NotePeer("worker/0");
  Report("worker/0", 100);
  Report("worker/1", 101);
  Process* const zero = Failed("worker/0", "exit 4");
  const Process *one = Running("worker/1"), *two = Running("worker/2");
  const RootCause cause = FindRootCause({zero}, {two, one}, "");
  EXPECT_EQ(cause.process, one);
  EXPECT_THAT(cause.line, StartsWith("worker/1 (pid "));
  EXPECT_EQ(cause.exit_code, 4);
}

TEST_F(RootCauseTest, AKilledProcessExplainsTheErrorsOfOthers) {
  Report("worker/0", 100);
  Process *zero = Failed("worker/0", "exit 1"), *one = Failed("worker/1", "kill -KILL $$");
  const RootCause cause = FindRootCause({zero, one}, {}, "worker/0: a connection was lost");
  EXPECT_EQ(cause.process, one);
  EXPECT_EQ(cause.exit_code, 128 + SIGKILL);
}

}  // namespace
}  // namespace tandem::launcher
