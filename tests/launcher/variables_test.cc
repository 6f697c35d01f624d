// SPDX-License-Identifier: Apache-2.0
#include "launcher/variables.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::launcher {
namespace {

using cluster::Round;
using ::testing::IsSupersetOf;
using ::testing::Pair;

// Two nodes: the first with two workers and two servers, the second with three workers and an actor.
class VariablesTest : public ::testing::Test {
 protected:
  VariablesTest() {
    round_.epoch = 4;
    round_.restarts = 2;
    round_.group_rank = 1;
    round_.nodes = {{.id = "a",
                     .host = "10.0.0.1",
                     .store = "10.0.0.1:41000",
                     .master_port = 29500,
                     .processes = {{"worker", 2}, {"ps", 2}}},
                    {.id = "b",
                     .host = "10.0.0.2",
                     .store = "10.0.0.2:1",
                     .master_port = 2,
                     .processes = {{"worker", 3}, {"actor", 1}}}};
    plan_.main = "worker";
    plan_.max_restarts = 5;
    plan_.roles = {{.name = "actor", .count = 1}, {.name = "worker", .count = 3}, {.name = "ps", .count = 2}};
  }
  ProcessSlot At(const char* role, int local_rank) {
    return {.plan = &plan_,
            .role = plan_.Find(role),
            .round = &round_,
            .local_rank = local_rank,
            .run_id = "job",
            .error_file = "/logs/error.json"};
  }
  LaunchPlan plan_;
  Round round_;
};

TEST_F(VariablesTest, AWorkerIsToldWhatTorchrunTells) {
  EXPECT_THAT(
      VariablesOf({}, At("worker", 1)),
      IsSupersetOf({Pair("RANK", "3"), Pair("WORLD_SIZE", "5"), Pair("LOCAL_RANK", "1"),
                    Pair("LOCAL_WORLD_SIZE", "3"), Pair("GROUP_RANK", "1"), Pair("GROUP_WORLD_SIZE", "2"),
                    Pair("ROLE_NAME", "worker"), Pair("ROLE_RANK", "3"), Pair("ROLE_WORLD_SIZE", "5"),
                    Pair("MASTER_ADDR", "10.0.0.1"), Pair("MASTER_PORT", "29500"),
                    Pair("TORCHELASTIC_RESTART_COUNT", "2"), Pair("TORCHELASTIC_MAX_RESTARTS", "5"),
                    Pair("TORCHELASTIC_RUN_ID", "job"), Pair("TORCHELASTIC_USE_AGENT_STORE", "False"),
                    Pair("TORCHELASTIC_ERROR_FILE", "/logs/error.json"), Pair("OMP_NUM_THREADS", "1")}));
}

TEST_F(VariablesTest, EveryRoleIsToldTheLeaseAndNobodyAnotherLaunchersBeat) {
  for (const char* role : {"worker", "ps"}) {
    ProcessSlot place = At(role, 0);
    place.lease = absl::Seconds(2.5);
    const Variables variables = VariablesOf({{"TANDEM_BEAT_FD", "17"}, {"TANDEM_LEASE", "7"}}, place);
    EXPECT_THAT(variables, IsSupersetOf({Pair("TANDEM_LEASE", "2.5")}));
    EXPECT_FALSE(variables.contains("TANDEM_BEAT_FD"));
  }
}

TEST_F(VariablesTest, AndWhatOnlyTandemHas) {
  EXPECT_THAT(VariablesOf({}, At("worker", 0)),
              IsSupersetOf({Pair("TANDEM_ROLE", "worker"), Pair("TANDEM_NUM_PS", "2"),
                            Pair("TANDEM_STORE", "10.0.0.1:41000"), Pair("TANDEM_RUN_ID", "job"),
                            Pair("TANDEM_EPOCH", "4")}));
}

TEST_F(VariablesTest, ProcessesHaveTheJobsKeyAndNotTheLaunchers) {
  ProcessSlot place = At("worker", 0);
  place.key_file = "/runs/7/key";
  const Variables variables =
      VariablesOf({{"TANDEM_KEY", "the text"}, {"TANDEM_KEY_FILE", "/home/me/.tandem/key"}}, place);
  EXPECT_THAT(variables, IsSupersetOf({Pair("TANDEM_KEY_FILE", "/runs/7/key")}));
  EXPECT_FALSE(variables.contains("TANDEM_KEY"));
}

TEST_F(VariablesTest, OtherRolesHaveAPlaceInTheirRoleButNoRank) {
  const Variables actor = VariablesOf({{"RANK", "17"}}, At("actor", 0));
  EXPECT_EQ(actor.count("RANK"), 0u);
  EXPECT_THAT(actor,
              IsSupersetOf({Pair("ROLE_RANK", "0"), Pair("ROLE_WORLD_SIZE", "1"), Pair("LOCAL_RANK", "0"),
                            Pair("LOCAL_WORLD_SIZE", "1"), Pair("WORLD_SIZE", "5")}));
  round_.group_rank = 0;
  const Variables server = VariablesOf({}, At("ps", 1));
  EXPECT_EQ(server.count("RANK"), 0u);
  EXPECT_THAT(server, IsSupersetOf({Pair("TANDEM_PS_INDEX", "1"), Pair("TANDEM_NUM_PS", "2"),
                                    Pair("WORLD_SIZE", "5"), Pair("LOCAL_WORLD_SIZE", "2")}));
}

TEST_F(VariablesTest, CopiesOfAShardAreToldApart) {
  plan_.roles[2] = {.name = "ps", .count = 1, .followers = 1, .min_copies = 2};
  round_.nodes[0].processes = {{"worker", 2}, {"ps", 1}, {kFollowersRole, 1}};
  round_.nodes[1].processes = {{"worker", 3}, {"ps", 1}, {kFollowersRole, 1}};
  ProcessSlot place = At("ps", 0);
  EXPECT_THAT(
      VariablesOf({}, place),
      IsSupersetOf({Pair("TANDEM_PS_INDEX", "1"), Pair("TANDEM_PS_COPY", "0"), Pair("TANDEM_NUM_PS", "2"),
                    Pair("TANDEM_PS_FOLLOWERS", "1"), Pair("TANDEM_PS_MIN_COPIES", "2"),
                    Pair("ROLE_RANK", "1"), Pair("ROLE_WORLD_SIZE", "4")}));
  place = At("ps", 1);
  place.serving_dir = "/logs/ps-1";
  EXPECT_THAT(VariablesOf({}, place), IsSupersetOf({Pair("TANDEM_PS_INDEX", "0"), Pair("TANDEM_PS_COPY", "1"),
                                                    Pair("TANDEM_NUM_PS", "2"), Pair("ROLE_RANK", "2"),
                                                    Pair("TANDEM_SERVING_DIR", "/logs/ps-1")}));
  // Workers need the number of servers, and that of all their processes to know when all have left.
  const Variables worker = VariablesOf({{"TANDEM_PS_COPY", "1"}}, At("worker", 0));
  EXPECT_THAT(worker, IsSupersetOf({Pair("TANDEM_NUM_PS", "2"), Pair("TANDEM_PS_FOLLOWERS", "1")}));
  EXPECT_EQ(worker.count("TANDEM_PS_COPY"), 0u);
}

TEST_F(VariablesTest, ANumberOfCopiesThatTheUserGaveWinsAgainstTheEnvironment) {
  round_.group_rank = 0;
  const Variables own = {{"TANDEM_PS_MIN_COPIES", "2"}};
  plan_.roles[2] = {.name = "ps", .count = 2, .followers = 1};
  EXPECT_EQ(VariablesOf(own, At("ps", 0)).at("TANDEM_PS_MIN_COPIES"), "2");
  plan_.roles[2].min_copies = 1;
  EXPECT_EQ(VariablesOf(own, At("ps", 0)).at("TANDEM_PS_MIN_COPIES"), "1");
  // A server without followers would refuse the environment's number.
  plan_.roles[2].followers = 0;
  EXPECT_EQ(VariablesOf(own, At("ps", 0)).at("TANDEM_PS_MIN_COPIES"), "1");
}

TEST_F(VariablesTest, OnlyServersAreToldTheRootOfCheckpoints) {
  round_.group_rank = 0;
  for (const char* role : {"ps", "worker"}) {
    ProcessSlot place = At(role, 0);
    EXPECT_EQ(VariablesOf({}, place).count("TANDEM_CHECKPOINT_ROOT"), 0u);
    EXPECT_EQ(VariablesOf({{"TANDEM_CHECKPOINT_ROOT", "/inherited"}}, place).at("TANDEM_CHECKPOINT_ROOT"),
              "/inherited");
    place.checkpoint_root = "/flag";
    EXPECT_EQ(VariablesOf({}, place).count("TANDEM_CHECKPOINT_ROOT"), place.role->name == "ps" ? 1u : 0u);
  }
}

TEST_F(VariablesTest, AnOuterLaunchersWordsAreNotPassedOn) {
  const Variables variables = VariablesOf(
      {{"TANDEM_PS_INDEX", "3"}, {"TANDEM_TERMINAL", "1"}, {"TANDEM_AGENT", "x"}, {"HOME", "/root"}},
      At("worker", 0));
  for (const char* name : {"TANDEM_PS_INDEX", "TANDEM_TERMINAL", "TANDEM_AGENT"})
    EXPECT_EQ(variables.count(name), 0u);
  EXPECT_EQ(variables.at("HOME"), "/root");
}

TEST_F(VariablesTest, ErrorsOfNcclAreHandledAsUnderTorchrun) {
  EXPECT_EQ(VariablesOf({}, At("worker", 0)).at("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "1");
  EXPECT_EQ(VariablesOf({{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}}, At("worker", 0))
                .at("TORCH_NCCL_ASYNC_ERROR_HANDLING"),
            "3");
  // The name of PyTorch before 2.2, which later versions warn of.
  EXPECT_EQ(VariablesOf({}, At("worker", 0)).count("NCCL_ASYNC_ERROR_HANDLING"), 0u);
  EXPECT_EQ(VariablesOf({{"NCCL_ASYNC_ERROR_HANDLING", "0"}}, At("worker", 0))
                .count("TORCH_NCCL_ASYNC_ERROR_HANDLING"),
            0u);
}

TEST_F(VariablesTest, TheUsersChoicesWin) {
  plan_.roles[1].environment = {{"OMP_NUM_THREADS", "8"}, {"MODE", "x"}};
  const Variables variables = VariablesOf({{"OMP_NUM_THREADS", "3"}}, At("worker", 0));
  EXPECT_THAT(variables, IsSupersetOf({Pair("OMP_NUM_THREADS", "8"), Pair("MODE", "x")}));
  EXPECT_EQ(VariablesOf({{"OMP_NUM_THREADS", "3"}}, At("actor", 0)).at("OMP_NUM_THREADS"), "3");
}

}  // namespace
}  // namespace tandem::launcher
