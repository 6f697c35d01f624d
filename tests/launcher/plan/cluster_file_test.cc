// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/cluster_file.h"

#include <fstream>

#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kFile[] = R"(
max_restarts: 3
environment: {OMP_NUM_THREADS: 2, MODE: fast}
roles:
  ps: {count: 2}
  learner:
    count: 1
    program: ./learner --game "space invaders"
    environment: {MODE: slow}
    bind: core
  actor: {count: 8, program: [./actor, --game, pong], restart_limit: 100}
  eval: {program: ./eval, serves: true, restart: alone, bind: numa}
)";

TEST(ClusterFileTest, RolesHaveCountsProgramsEnvironmentsAndPolicies) {
  LaunchPlan plan;
  TANDEM_ASSERT_OK(ReadClusterFile(kFile, "c.yaml", &plan));
  EXPECT_EQ(plan.max_restarts, 3);
  EXPECT_FALSE(plan.reform);
  ASSERT_EQ(plan.roles.size(), 4u);
  EXPECT_EQ(plan.Count("ps"), 2);
  const RolePlan& learner = *plan.Find("learner");
  EXPECT_THAT(learner.command, ElementsAre("./learner", "--game", "space invaders"));
  EXPECT_EQ(learner.environment.at("MODE"), "slow");
  EXPECT_EQ(learner.environment.at("OMP_NUM_THREADS"), "2");
  EXPECT_EQ(learner.bind, Bind::kCore);
  EXPECT_EQ(learner.restart, Restart::kJob);
  const RolePlan& actor = *plan.Find("actor");
  EXPECT_EQ(actor.count, 8);
  EXPECT_THAT(actor.command, ElementsAre("./actor", "--game", "pong"));
  EXPECT_EQ(actor.restart, Restart::kAlone);
  EXPECT_EQ(actor.restart_limit, 100);
  EXPECT_EQ(actor.environment.at("MODE"), "fast");
  const RolePlan& eval = *plan.Find("eval");
  EXPECT_EQ(eval.count, 1);
  EXPECT_TRUE(eval.serves);
  EXPECT_EQ(eval.bind, Bind::kNuma);
}

TEST(ClusterFileTest, FlagsWinOverTheFile) {
  testing::TempDir dir;
  std::ofstream(dir.File("c.yaml")) << kFile;
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const LaunchPlan plan,
      MakePlan({.max_restarts = 1, .cluster = dir.File("c.yaml"), .actors = 2}, /*program=*/{}));
  EXPECT_EQ(plan.main, "learner");
  EXPECT_EQ(plan.max_restarts, 1);
  EXPECT_EQ(plan.Count("actor"), 2);
  EXPECT_THAT(plan.Find("actor")->command, ElementsAre("./actor", "--game", "pong"));
}

TEST(ClusterFileTest, EveryMistakeIsNamedWithItsLine) {
  LaunchPlan plan;
  const absl::Status status = ReadClusterFile(R"(max_restarts: -1
on_failure: ignore
roles:
  ps: {count: many}
  "a b": {count: 1}
  actor: 3
  learner:
    program: []
    restarts: alone
    environment: [A]
)",
                                              "c.yaml", &plan);
  ASSERT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
  for (const char* part :
       {"c.yaml:1: field 'max_restarts'", "c.yaml:2: field 'on_failure' is 'ignore'",
        "c.yaml:4: field 'count' in 'roles.ps'", "c.yaml:5: 'a b' is no name of a role",
        "c.yaml:6: 'roles.actor' must be a mapping", "c.yaml:8: 'roles.learner.program' must be a command",
        "c.yaml:9: unknown field 'restarts' in 'roles.learner'",
        "c.yaml:10: 'roles.learner.environment' must be a mapping"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

TEST(ClusterFileTest, WhatIsNoClusterFileIsRefused) {
  for (const char* text : {"", ",", "{} , roles", "[1, 2]", "roles: 3", "roles: {}", "a: [",
                           "main: boss\nroles: {worker: {program: x}}"}) {
    LaunchPlan plan;
    EXPECT_THAT(ReadClusterFile(text, "c.yaml", &plan),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("c.yaml")))
        << text;
  }
}

}  // namespace
}  // namespace tandem::launcher
