// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/flags.h"

#include <stdlib.h>

#include "CLI/CLI.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/plan/variable_options.h"

namespace tandem::launcher {
namespace {

using Words = std::vector<std::string>;
using ::testing::ElementsAre;

class FlagsTest : public ::testing::Test {
 protected:
  FlagsTest() { AddRunFlags(&app_, &flags_, &variables_); }
  void Parse(Words words) {
    std::reverse(words.begin(), words.end());  // as CLI11 wants them
    app_.parse(words);
    flags_.variables = variables_.Read();
  }
  CLI::App app_;
  RunFlags flags_;
  VariableOptions variables_;
};

TEST_F(FlagsTest, TheProgramBeginsAtTheFirstWordThatIsNoFlagsValue) {
  const struct {
    Words words;
    size_t start;
  } kCases[] = {
      {{"train.py", "--nnodes", "2"}, 0},
      {{"--nproc-per-node", "2", "train.py", "-m"}, 2},
      {{"--nproc_per_node=2", "train.py"}, 1},
      {{"--standalone", "--nnodes", "1", "train.py", "--", "x"}, 3},
      {{"-m", "package.module", "--flag"}, 1},
      {{"-t", "3", "-r", "0:1", "x"}, 4},
      {{"-t3", "x"}, 1},
      {{"--ps", "2", "--", "--strange"}, 3},
      {{"--", "x"}, 1},
      {{"--role", "actor=2:./actor --x", "./learner"}, 2},
      {{"--nnodes", "2"}, 2},
      {{}, 0},
  };
  for (const auto& one : kCases) {
    EXPECT_EQ(ProgramStart(app_, one.words), one.start) << ::testing::PrintToString(one.words);
  }
}

TEST_F(FlagsTest, TorchrunsFlagsAreTakenInBothSpellings) {
  Parse({"--nnodes=1:4",
         "--nproc_per_node",
         "gpu",
         "--node_rank",
         "1",
         "--rdzv_backend",
         "c10d",
         "--rdzv-endpoint",
         "h:1",
         "--rdzv_id",
         "job",
         "--rdzv_conf",
         "a=1,b=2",
         "--max_restarts",
         "3",
         "--monitor_interval",
         "0.5",
         "--start-method",
         "spawn",
         "--role",
         "trainer",
         "--log_dir",
         "/l",
         "-r",
         "3",
         "-t",
         "0:1,1:2",
         "--local_ranks_filter",
         "0",
         "--master_addr",
         "m",
         "--master_port",
         "29501",
         "--local_addr",
         "l",
         "--standalone",
         "--no_python"});
  EXPECT_EQ(flags_.nnodes, "1:4");
  EXPECT_EQ(flags_.nproc_per_node, "gpu");
  EXPECT_EQ(flags_.node_rank, 1);
  EXPECT_EQ(flags_.rdzv_backend, "c10d");
  EXPECT_EQ(flags_.rdzv_endpoint, "h:1");
  EXPECT_EQ(flags_.rdzv_id, "job");
  EXPECT_EQ(flags_.rdzv_conf, "a=1,b=2");
  EXPECT_EQ(flags_.max_restarts, 3);
  EXPECT_EQ(flags_.monitor_interval, 0.5);
  EXPECT_THAT(flags_.roles, ElementsAre("trainer"));
  EXPECT_EQ(flags_.log_dir, "/l");
  EXPECT_EQ(flags_.redirects, "3");
  EXPECT_EQ(flags_.tee, "0:1,1:2");
  EXPECT_EQ(flags_.local_ranks_filter, "0");
  EXPECT_EQ(flags_.master_addr, "m");
  EXPECT_EQ(flags_.master_port, 29501);
  EXPECT_EQ(flags_.local_addr, "l");
  EXPECT_TRUE(flags_.standalone);
  EXPECT_TRUE(flags_.no_python);
}

TEST_F(FlagsTest, TorchrunsVariablesAreDefaultsThatFlagsOverride) {
  ::setenv("PET_NNODES", "4", 1);
  ::setenv("PET_NPROC_PER_NODE", "8", 1);
  Parse({"--nnodes", "2"});
  ::unsetenv("PET_NNODES");
  ::unsetenv("PET_NPROC_PER_NODE");
  EXPECT_EQ(flags_.nnodes, "2");
  EXPECT_EQ(flags_.nproc_per_node, "8");
}

}  // namespace
}  // namespace tandem::launcher
