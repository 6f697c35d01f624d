// SPDX-License-Identifier: Apache-2.0
// Tests tandem run without failures.

#include <signal.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using testing::Lines;
using ::testing::Not;
using testing::ProcessesMarked;
using testing::ReadFile;
using testing::RunTandem;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using testing::WaitUntilNoneMarked;

TEST(RunTest, EachWorkerIsToldItsPlace) {
  testing::TempDir dir;
  const Finished finished =
      RunTandem({"run", "--workers", "2", "--log-dir", dir.path(), "--", "/bin/sh", "-c", "env"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  std::string ports[2], runs[2];
  for (int rank : {0, 1}) {
    const std::vector<std::string> variables =
        Lines(ReadFile(dir.File(absl::StrCat("worker-", rank, ".log"))));
    EXPECT_THAT(variables,
                IsSupersetOf({absl::StrCat("RANK=", rank), absl::StrCat("LOCAL_RANK=", rank),
                              std::string("WORLD_SIZE=2"), std::string("LOCAL_WORLD_SIZE=2"),
                              std::string("MASTER_ADDR=127.0.0.1"), std::string("TANDEM_ROLE=worker"),
                              std::string("TANDEM_NUM_PS=0"), std::string("OMP_NUM_THREADS=1")}));
    EXPECT_THAT(variables, Not(Contains(StartsWith("TANDEM_PS_INDEX="))));
    for (const std::string& variable : variables) {
      if (variable.rfind("MASTER_PORT=", 0) == 0) ports[rank] = variable;
      if (variable.rfind("TANDEM_RUN_ID=", 0) == 0) runs[rank] = variable;
    }
  }
  EXPECT_NE(ports[0], "");
  EXPECT_EQ(ports[0], ports[1]);
  EXPECT_NE(runs[0], "");
  EXPECT_EQ(runs[0], runs[1]);
}

TEST(RunTest, AThreadCountOfTheUsersOwnIsKept) {
  testing::TempDir dir;
  const Finished finished =
      RunTandem({"run", "--log-dir", dir.path(), "--", "/bin/sh", "-c", "echo threads=$OMP_NUM_THREADS"},
                {{"OMP_NUM_THREADS", "3"}});
  EXPECT_THAT(finished.out, HasSubstr("threads=3"));
}

TEST(RunTest, OutputIsPrefixedAndKeptInFiles) {
  testing::TempDir dir;
  const Finished finished = RunTandem({"run", "--workers", "2", "--log-dir", dir.path(), "--", "/bin/sh",
                                       "-c", "echo out $RANK; echo err $RANK >&2; printf 'no end %s' $RANK"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(Lines(finished.out), UnorderedElementsAre("[worker/0] out 0", "[worker/1] out 1",
                                                        "[worker/0] no end 0", "[worker/1] no end 1"));
  EXPECT_THAT(finished.err, AllOf(HasSubstr("[worker/0] err 0\n"), HasSubstr("[worker/1] err 1\n")));
  EXPECT_THAT(ReadFile(dir.File("worker-1.log")),
              AllOf(HasSubstr("out 1\n"), HasSubstr("err 1\n"), HasSubstr("no end 1")));
  EXPECT_THAT(ReadFile(dir.File("worker-1.log")), Not(HasSubstr("[worker/1]")));
}

TEST(RunTest, LogsGoToADirectoryOfTheRunByDefault) {
  testing::TempDir dir;
  const Finished finished = RunTandem({"run", "--", "/bin/sh", "-c", "echo $TANDEM_RUN_ID"}, {}, dir.path());
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const std::string run_id(absl::StripPrefix(Lines(finished.out).at(0), "[worker/0] "));
  EXPECT_EQ(ReadFile(dir.File(absl::StrCat("runs/", run_id, "/logs/worker-0.log"))), run_id + "\n");
}

TEST(RunTest, MuchOutputArrivesWhole) {
  testing::TempDir dir;
  const Finished finished =
      RunTandem({"run", "--workers", "2", "--log-dir", dir.path(), "--", "/bin/sh", "-c",
                 "i=0; while [ $i -lt 20000 ]; do echo line $i of this worker; i=$((i+1)); done"});
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_EQ(Lines(finished.out).size(), 40000u);
  EXPECT_EQ(Lines(ReadFile(dir.File("worker-1.log"))).size(), 20000u);
}

TEST(RunTest, OfALineDrawnOverTheLastStateIsShown) {
  testing::TempDir dir;
  const Finished finished =
      RunTandem({"run", "--log-dir", dir.path(), "--", "/bin/sh", "-c", "printf '10%%\\r20%%\\r30%%\\n'"});
  EXPECT_THAT(Lines(finished.out), ElementsAre("[worker/0] 30%"));
}

TEST(RunTest, StandardInputIsEmpty) {
  testing::TempDir dir;
  const Finished finished =
      RunTandem({"run", "--log-dir", dir.path(), "--", "/bin/sh", "-c", "cat; echo read all"});
  EXPECT_THAT(Lines(finished.out), ElementsAre("[worker/0] read all"));
}

TEST(RunTest, SignalHandlingIsThatOfAFreshProcess) {
  testing::TempDir dir;
  const Finished finished = RunTandem(
      {"run", "--log-dir", dir.path(), "--", "/bin/sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status"});
  // Signal 32 is reserved by the C library; a program cannot change its handling.
  EXPECT_THAT(Lines(finished.out),
              ElementsAre("[worker/0] SigBlk:\t0000000000000000",
                          ::testing::MatchesRegex(".worker/0. SigIgn:\t00000000[08]0000000")));
}

TEST(RunTest, ServersStartWithTheWorkersAndEndAfterThem) {
  testing::TempDir dir;
  const std::string marker = absl::StrCat("TANDEM_TEST_MARK=", dir.path());
  const Finished finished =
      RunTandem({"run", "--ps", "2", "--log-dir", dir.path(), "--", "/bin/sh", "-c",
                 // Wait for both lines, which come through the launcher. This process must not end before.
                 absl::StrCat("until grep -q serving ", dir.File("ps-0.log"), " && grep -q serving ",
                              dir.File("ps-1.log"), "; do :; done; echo num_ps=$TANDEM_NUM_PS")},
                {{"TANDEM_TEST_MARK", dir.path()}});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("[worker/0] num_ps=2"));
  EXPECT_THAT(ReadFile(dir.File("ps-1.log")), AllOf(HasSubstr("server 1 of 2"), HasSubstr("ps/1")));
  EXPECT_TRUE(ProcessesMarked(marker).empty());
}

TEST(RunTest, TheProgramTandemIsThisOne) {
  testing::TempDir dir;
  const Finished finished =
      RunTandem({"run", "--log-dir", dir.path(), "--", "tandem", "--version"}, {{"PATH", "/nowhere"}});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, StartsWith("[worker/0] tandem 0."));
}

TEST(RunTest, ProgramsAreFoundInPath) {
  testing::TempDir dir;
  const Finished finished = RunTandem({"run", "--log-dir", dir.path(), "--", "echo", "--", "--ps", "7"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(Lines(finished.out), ElementsAre("[worker/0] -- --ps 7"));
}

TEST(RunTest, WhatAWorkerLeavesBehindIsKilled) {
  testing::TempDir dir;
  const Finished finished =
      RunTandem({"run", "--log-dir", dir.path(), "--", "/bin/sh", "-c", "tail -f /dev/null & echo left $!"},
                {{"TANDEM_TEST_MARK", dir.path()}});
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_THAT(finished.out, HasSubstr("left "));
  EXPECT_TRUE(WaitUntilNoneMarked(absl::StrCat("TANDEM_TEST_MARK=", dir.path())));
}

}  // namespace
}  // namespace tandem::cli
