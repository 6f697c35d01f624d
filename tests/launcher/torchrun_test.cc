// SPDX-License-Identifier: Apache-2.0
// Tests the features of torchrun in tandem run (Python programs, redirected streams, log directories), and
// pinning.

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Lines;
using ::testing::Not;
using testing::ReadFile;
using testing::RunTandem;
using ::testing::UnorderedElementsAre;

class TorchrunTest : public ::testing::Test {
 protected:
  // The log directory contains a folder for the run, whose name begins with the run id.
  std::string Attempt(int attempt, const std::string& place, const std::string& file) const {
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      if (!entry.is_directory()) continue;
      return absl::StrCat(entry.path().string(), "/attempt_", attempt, "/", place, "/", file);
    }
    return "";
  }
  Finished Run(std::vector<std::string> flags, const std::string& script) const {
    std::vector<std::string> args = {"run", "--log-dir", dir_.path()};
    args.insert(args.end(), flags.begin(), flags.end());
    for (const std::string& word : {std::string("/bin/sh"), std::string("-c"), script}) args.push_back(word);
    return RunTandem(args);
  }
  testing::TempDir dir_;
};

TEST_F(TorchrunTest, TheProgramNeedsNoDashesBeforeIt) {
  const Finished finished = RunTandem({"run", "--standalone", "--nproc_per_node=2", "--log_dir", dir_.path(),
                                       "/bin/echo", "--nnodes", "7", "--", "x"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(Lines(finished.out),
              UnorderedElementsAre("[worker/0] --nnodes 7 -- x", "[worker/1] --nnodes 7 -- x"));
}

TEST_F(TorchrunTest, AScriptIsRunByPythonUnbuffered) {
  const std::string python = dir_.File("python");
  std::ofstream(python) << "#!/bin/sh\necho python \"$@\"\n";
  std::filesystem::permissions(python, std::filesystem::perms::all);
  const Finished script =
      RunTandem({"run", "--log-dir", dir_.path(), "train.py", "--lr", "1"}, {{"PYTHON_EXEC", python}});
  EXPECT_THAT(Lines(script.out), ElementsAre("[worker/0] python -u train.py --lr 1"));
  const Finished module =
      RunTandem({"run", "--log-dir", dir_.path(), "-m", "pkg.train", "-x"}, {{"PYTHON_EXEC", python}});
  EXPECT_THAT(Lines(module.out), ElementsAre("[worker/0] python -u -m pkg.train -x"));
}

TEST_F(TorchrunTest, TheEnvironmentIsTorchruns) {
  const Finished finished = Run({"--nproc-per-node", "2", "--rdzv-id", "my-job", "--role", "trainer",
                                 "--max-restarts", "4", "--master-addr", "localhost"},
                                "echo $ROLE_NAME $ROLE_RANK/$ROLE_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE "
                                "$TORCHELASTIC_RUN_ID $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS "
                                "$TORCHELASTIC_USE_AGENT_STORE $MASTER_ADDR");
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(Lines(finished.out),
              UnorderedElementsAre("[trainer/0] trainer 0/2 0/1 my-job 0/4 False localhost",
                                   "[trainer/1] trainer 1/2 0/1 my-job 0/4 False localhost"));
}

TEST_F(TorchrunTest, RedirectedStreamsGoToFilesOnly) {
  const Finished finished =
      Run({"--nproc-per-node", "2", "-r", "0:1,1:3"}, "echo out $RANK; echo err $RANK >&2");
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(Lines(finished.out), IsEmpty());
  EXPECT_THAT(finished.err, AllOf(HasSubstr("[worker/0] err 0"), Not(HasSubstr("err 1"))));
  EXPECT_EQ(ReadFile(Attempt(0, "0", "stdout.log")), "out 0\n");
  EXPECT_EQ(ReadFile(Attempt(0, "1", "stdout.log")), "out 1\n");
  EXPECT_EQ(ReadFile(Attempt(0, "1", "stderr.log")), "err 1\n");
  EXPECT_FALSE(std::filesystem::exists(Attempt(0, "0", "stderr.log")));
  EXPECT_EQ(ReadFile(dir_.File("worker-1.log")).size(), 12u);  // both streams, as always
}

TEST_F(TorchrunTest, TeedStreamsGoToBoth) {
  const Finished finished = Run({"-t", "3", "-r3"}, "echo out; echo err >&2");
  EXPECT_THAT(Lines(finished.out), ElementsAre("[worker/0] out"));
  EXPECT_THAT(finished.err, HasSubstr("[worker/0] err"));
  EXPECT_EQ(ReadFile(Attempt(0, "0", "stdout.log")), "out\n");
  EXPECT_EQ(ReadFile(Attempt(0, "0", "stderr.log")), "err\n");
}

TEST_F(TorchrunTest, AFilterShowsSomeRanksOnly) {
  const Finished finished = Run({"--nproc-per-node", "3", "--local-ranks-filter", "0,2"}, "echo $RANK");
  EXPECT_THAT(Lines(finished.out), UnorderedElementsAre("[worker/0] 0", "[worker/2] 2"));
  EXPECT_EQ(ReadFile(dir_.File("worker-1.log")), "1\n");
}

TEST_F(TorchrunTest, AChosenPortIsTheProgramsAndAnotherIsFreeByDefault) {
  const Finished one = Run({"--master-port", "0"}, "echo $MASTER_PORT");
  const std::string port(absl::StripPrefix(Lines(one.out).at(0), "[worker/0] "));
  const Finished other = Run({"--master-port", port}, "echo $MASTER_PORT");
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_EQ(other.out, one.out);
}

TEST_F(TorchrunTest, ProcessesAreBoundToCores) {
  const Finished finished = Run({"--nproc-per-node", "2", "--bind", "core"},
                                "grep Cpus_allowed_list /proc/self/status; cat /proc/$$/status | "
                                "grep -c Cpus_allowed_list");
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  cpu_set_t mine;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(mine), &mine), 0);
  const std::vector<std::string> lines = Lines(finished.out);
  ASSERT_EQ(lines.size(), 4u) << finished.out;
  std::vector<std::string> lists;
  for (const std::string& line : lines) {
    const size_t tab = line.find('\t');
    if (tab != std::string::npos) lists.push_back(line.substr(tab + 1));
  }
  ASSERT_EQ(lists.size(), 2u);
  // One core is shared; of several each process has its own.
  std::vector<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mine)) continue;
    cores.push_back(absl::StrCat(
        ReadFile(absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/topology/core_id")), "@",
        ReadFile(absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/topology/physical_package_id"))));
  }
  const bool several =
      std::any_of(cores.begin(), cores.end(), [&](const auto& core) { return core != cores[0]; });
  EXPECT_EQ(lists[0] != lists[1], several) << lists[0] << " and " << lists[1];
}

TEST_F(TorchrunTest, RolesOfOneLineRunTheirOwnPrograms) {
  const Finished finished =
      RunTandem({"run", "--log-dir", dir_.path(), "--learners", "1", "--actors", "2", "--role",
                 "eval=1:/bin/sh -c 'echo eval $ROLE_RANK of $ROLE_WORLD_SIZE'", "--", "/bin/sh", "-c",
                 "if [ $TANDEM_ROLE = actor ]; then echo acting; exec tail -f /dev/null; fi; "
                 "until grep -q acting " +
                     dir_.File("actor-0.log") + " && grep -q acting " + dir_.File("actor-1.log") +
                     "; do :; done; echo learned"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(Lines(finished.out), UnorderedElementsAre("[learner/0] learned", "[actor/0] acting",
                                                        "[actor/1] acting", "[eval/0] eval 0 of 1"));
}

TEST_F(TorchrunTest, AClusterFileStartsTheSame) {
  std::ofstream(dir_.File("cluster.yaml")) << R"(
environment: {GAME: pong}
roles:
  learner: {count: 2, program: [/bin/sh, -c, 'echo $RANK learns $GAME']}
  eval: {count: 1, program: /bin/sh -c 'echo $GAME is judged', environment: {GAME: chess}}
)";
  const Finished finished =
      RunTandem({"run", "--log-dir", dir_.path(), "--cluster", dir_.File("cluster.yaml")});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(Lines(finished.out),
              UnorderedElementsAre("[learner/0] 0 learns pong", "[learner/1] 1 learns pong",
                                   "[eval/0] chess is judged"));
}

TEST_F(TorchrunTest, WrongUsageIsExplained) {
  const struct {
    std::vector<std::string> args;
    const char* message;
  } kCases[] = {
      {{"--nnodes", "x", "true"}, "--nnodes 'x'"},
      {{"--nnodes", "2", "true"}, "--node-rank is missing"},
      {{"--nnodes", "2:4", "--node-rank", "0", "true"}, "--rdzv-backend c10d or etcd"},
      {{"--nnodes", "2", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", "h:1", "true"},
       "use --rdzv-backend etcd"},
      {{"--nproc-per-node", "many", "true"}, "--nproc-per-node many"},
      {{"-t", "9", "true"}, "--tee '9'"},
      {{"--ps", "1"}, "PROGRAM is missing"},
      {{"--no-such-flag", "true"}, "--no-such-flag"},
  };
  for (const auto& one : kCases) {
    std::vector<std::string> args = {"run", "--log-dir", dir_.path()};
    args.insert(args.end(), one.args.begin(), one.args.end());
    const Finished finished = RunTandem(args);
    EXPECT_EQ(finished.exit_code, 2) << one.message;
    EXPECT_THAT(finished.err, HasSubstr(one.message));
  }
}

}  // namespace
}  // namespace tandem::launcher
