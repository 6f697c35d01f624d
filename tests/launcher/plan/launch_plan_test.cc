// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/launch_plan.h"

#include <stdlib.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace tandem::launcher {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

std::vector<std::string> Names(const LaunchPlan& plan) {
  std::vector<std::string> names;
  for (const RolePlan& role : plan.roles) names.push_back(absl::StrCat(role.name, "=", role.count));
  return names;
}

TEST(PlanTest, AProgramByItselfIsOneWorker) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const LaunchPlan plan, MakePlan({}, {"./train", "x"}));
  EXPECT_THAT(Names(plan), ElementsAre("worker=1"));
  EXPECT_EQ(plan.main, "worker");
  EXPECT_THAT(plan.roles[0].command, ElementsAre("./train", "x"));
  EXPECT_EQ(plan.roles[0].restart, Restart::kJob);
}

TEST(PlanTest, ANodeIsReplaceableIfAllItsProcessesAreRestartedAlone) {
  const auto replaceable = [](const RunFlags& flags) {
    const absl::StatusOr<LaunchPlan> plan = MakePlan(flags, {"./program"});
    TANDEM_EXPECT_OK(plan);
    return plan.ok() && plan->IsReplaceable();
  };
  EXPECT_TRUE(replaceable({.servers = 1, .workers = 0, .ps_followers = 1}));
  EXPECT_TRUE(replaceable({.workers = 0, .actors = 4}));
  EXPECT_TRUE(replaceable({.servers = 1, .workers = 0, .actors = 4, .ps_followers = 2}));
  EXPECT_FALSE(replaceable({.servers = 1, .workers = 0})) << "its tables would be lost";
  EXPECT_FALSE(replaceable({.servers = 1, .workers = 0, .restart = {"ps=alone"}}));
  EXPECT_FALSE(replaceable({.servers = 1, .workers = 1, .ps_followers = 1}));
  EXPECT_TRUE(replaceable({.workers = 1, .restart = {"worker=alone"}}));
  EXPECT_TRUE(replaceable({.servers = 1, .workers = 1, .ps_followers = 1, .restart = {"worker=alone"}}));
  EXPECT_FALSE(replaceable({.servers = 1, .workers = 1, .restart = {"worker=alone"}})) << "its tables";
  EXPECT_FALSE(replaceable({.workers = 0, .actors = 4, .restart = {"actor=job"}}));
  EXPECT_FALSE(replaceable({.workers = 0, .replay = 1})) << "a replay server is not restarted alone";
  EXPECT_FALSE(replaceable({.workers = 0, .actors = 4, .on_failure = "reform"}));
}

TEST(PlanTest, ServersStartFirstAndNeedNoProgramOfTheUsers) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const LaunchPlan plan, MakePlan({.servers = 2, .workers = 4}, {"./train"}));
  EXPECT_THAT(Names(plan), ElementsAre("ps=2", "worker=4"));
  EXPECT_TRUE(plan.roles[0].serves);
  EXPECT_TRUE(plan.roles[0].command.empty());
}

TEST(PlanTest, LearnersAreTheMainRoleOfReinforcementLearning) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const LaunchPlan plan,
                              MakePlan({.actors = 8, .learners = 1, .replay = 1}, {"./agent"}));
  EXPECT_THAT(Names(plan), ElementsAre("replay=1", "actor=8", "learner=1"));
  EXPECT_EQ(plan.main, "learner");
  EXPECT_EQ(plan.Find("actor")->restart, Restart::kAlone);
  EXPECT_TRUE(plan.Find("actor")->serves);
}

TEST(PlanTest, RolesNameTheWorkersOrAddOthers) {
  RunFlags flags{.nproc_per_node = "2", .roles = {"trainer", "eval=1:./eval --every '60 s'", "copy=3"}};
  TANDEM_ASSERT_OK_AND_ASSIGN(const LaunchPlan plan, MakePlan(flags, {"./train"}));
  EXPECT_THAT(Names(plan), ElementsAre("eval=1", "copy=3", "trainer=2"));
  EXPECT_EQ(plan.main, "trainer");
  EXPECT_THAT(plan.Find("eval")->command, ElementsAre("./eval", "--every", "60 s"));
  EXPECT_THAT(plan.Find("copy")->command, ElementsAre("./train"));
}

TEST(PlanTest, TheScriptOfAnInterpreterThatThePlanInsertedIsNamed) {
  for (const auto& [flags, program, script] :
       std::vector<std::tuple<RunFlags, std::vector<std::string>, std::string>>{
           {{}, {"train.py", "--lr", "1"}, "train.py"},
           {{.run_path = true}, {"train", "x"}, "train"},
           {{.module = true}, {"pkg.train"}, ""},
           {{.no_python = true}, {"train.py"}, ""},
           {{}, {"env", "-u", "FOO", "true"}, ""},
           {{}, {"python3", "-u", "-c", "code"}, ""}}) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const LaunchPlan plan, MakePlan(flags, program));
    EXPECT_EQ(plan.Find("worker")->script, script) << program[0];
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const LaunchPlan plan, MakePlan({.roles = {"eval=1:eval.py -u x", "judge=1:env -u A true"}}, {"true"}));
  EXPECT_EQ(plan.Find("eval")->script, "eval.py");
  EXPECT_EQ(plan.Find("judge")->script, "");
}

TEST(PlanTest, RestartsAreSetByRole) {
  RunFlags flags{.max_restarts = 3,
                 .servers = 1,
                 .workers = 1,
                 .actors = 1,
                 .restart = {"worker=alone:5", "actor=job"},
                 .bind = "core"};
  TANDEM_ASSERT_OK_AND_ASSIGN(const LaunchPlan plan, MakePlan(flags, {"./train"}));
  EXPECT_EQ(plan.max_restarts, 3);
  EXPECT_EQ(plan.Find("worker")->restart, Restart::kAlone);
  EXPECT_EQ(plan.Find("worker")->restart_limit, 5);
  EXPECT_EQ(plan.Find("worker")->bind, Bind::kCore);
  EXPECT_EQ(plan.Find("actor")->restart, Restart::kJob);
}

TEST(PlanTest, PythonScriptsRunAsTorchrunRunsThem) {
  ::unsetenv("PYTHON_EXEC");
  const struct {
    RunFlags flags;
    Words words, command;
  } kCases[] = {
      {{}, {"train.py", "--lr", "1"}, {"python3", "-u", "train.py", "--lr", "1"}},
      {{.module = true}, {"pkg.train", "x"}, {"python3", "-u", "-m", "pkg.train", "x"}},
      {{.no_python = true}, {"train.py"}, {"train.py"}},
      {{}, {"./train", "a.py"}, {"./train", "a.py"}},
  };
  for (const auto& one : kCases) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const Words command, ProgramCommand(one.flags, one.words));
    EXPECT_EQ(command, one.command);
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const Words path, ProgramCommand({.run_path = true}, {"/s.py", "x"}));
  EXPECT_THAT(path, ElementsAre("python3", "-u", "-c", HasSubstr("runpy.run_path"), "/s.py", "x"));
  ::setenv("PYTHON_EXEC", "/opt/python", 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Words other, ProgramCommand({}, {"train.py"}));
  ::unsetenv("PYTHON_EXEC");
  EXPECT_THAT(other, ElementsAre("/opt/python", "-u", "train.py"));
}

TEST(PlanTest, ProcessesPerNodeAreCountedOrGiven) {
  EXPECT_EQ(*ProcessesPerNode("3"), 3);
  EXPECT_GE(*ProcessesPerNode("cpu"), 1);
  ::setenv("CUDA_VISIBLE_DEVICES", "0,2,5", 1);
  EXPECT_EQ(*ProcessesPerNode("gpu"), 3);
  EXPECT_EQ(*ProcessesPerNode("auto"), 3);
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_EQ(*ProcessesPerNode("auto"), *ProcessesPerNode("cpu"));
  EXPECT_THAT(ProcessesPerNode("gpu"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no GPU")));
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_THAT(ProcessesPerNode("many"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("many")));
}

TEST(PlanTest, WhatIsWrongIsNamed) {
  const struct {
    RunFlags flags;
    Words program;
    const char* message;
  } kCases[] = {
      {{}, {}, "PROGRAM is missing, which role 'worker' needs"},
      {{.workers = 0}, {"x"}, "there is nothing to start"},
      {{.nproc_per_node = "2", .workers = 3}, {"x"}, "--nproc-per-node 2 and --workers 3"},
      {{.module = true, .no_python = true}, {"x"}, "exclude each other"},
      {{.roles = {"a", "b"}}, {"x"}, "--role a and --role b"},
      {{.roles = {"a b"}}, {"x"}, "'a b' is no name of a role"},
      {{.roles = {"a=x"}}, {"x"}, "'x' is no count"},
      {{.roles = {"a=1:'open"}}, {"x"}, "opens a quote"},
      {{.restart = {"actor=alone"}}, {"x"}, "the job has no role 'actor'"},
      {{.restart = {"worker=never"}}, {"x"}, "expected ROLE=alone"},
      {{.restart = {"worker=job:3"}}, {"x"}, "expected ROLE=alone"},
      {{.roles = {"ps"}}, {"x"}, "cannot be the main role"},
      {{.cluster = "/no/such/file"}, {"x"}, "the cluster file: cannot read '/no/such/file': No such file"},
      {{.cluster = "/"}, {"x"}, "cannot read '/': it is a directory"},
  };
  for (const auto& one : kCases) {
    const auto plan = MakePlan(one.flags, one.program);
    ASSERT_FALSE(plan.ok()) << one.message;
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr(one.message));
  }
}

TEST(PlanTest, CommandsAreSplitAtBlanksOutsideQuotes) {
  EXPECT_THAT(*SplitCommand("  a 'b  c' d\"e f\"g  \"\" "), ElementsAre("a", "b  c", "de fg", ""));
  EXPECT_TRUE(SplitCommand("  ")->empty());
}

TEST(PlanTest, ServersWithFollowersComeBackAlone) {
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const LaunchPlan plan,
      MakePlan({.servers = 3, .workers = 1, .ps_followers = 1, .ps_min_copies = 2}, {"./train"}));
  const RolePlan& servers = *plan.Find("ps");
  EXPECT_EQ(servers.count, 3);
  EXPECT_EQ(servers.processes(), 6);
  EXPECT_EQ(servers.min_copies, 2);
  EXPECT_EQ(servers.restart, Restart::kAlone);
  EXPECT_EQ(plan.Find("worker")->processes(), 1);
  EXPECT_EQ(plan.Find("worker")->restart, Restart::kJob);
}

TEST(PlanTest, FollowersThatCannotBeAreRefused) {
  const struct {
    RunFlags flags;
    const char* message;
  } kCases[] = {
      {{.workers = 1, .ps_followers = 1}, "need parameter servers on this node; give --ps N"},
      {{.servers = 1, .ps_followers = 1, .wal_dir = "wal"},
       "--wal-dir and --ps-followers exclude each other"},
      {{.servers = 1, .ps_followers = 1, .ps_min_copies = 3}, "--ps-min-copies 3 needs 2 or more followers"},
      {{.servers = 1, .ps_min_copies = 2}, "give --ps-followers 1"},
      {{.servers = 1, .ps_followers = 1, .restart = {"ps=job"}},
       "--restart ps=job and --ps-followers exclude"},
      {{.roles = {"ps=1:./own"}, .ps_followers = 1}, "has a program of its own"},
  };
  for (const auto& one : kCases) {
    EXPECT_THAT(MakePlan(one.flags, {"./train"}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(one.message)));
  }
}

TEST(PlanTest, ParameterServersDoNotFollowAJobThatReForms) {
  EXPECT_THAT(MakePlan({.servers = 1, .workers = 1, .on_failure = "reform"}, {"./train"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--on-failure reform and --ps")));
  TANDEM_EXPECT_OK(MakePlan({.servers = 0, .workers = 1, .on_failure = "reform"}, {"./train"}).status());
}

}  // namespace
}  // namespace tandem::launcher
