// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/external_launcher.h"

#include <map>

#include "tests/testing/status_matchers.h"

namespace tandem::launcher {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

auto LookupIn(const Variables& variables) {
  return [&variables](absl::string_view name) -> std::optional<std::string> {
    const auto it = variables.find(std::string(name));
    return it == variables.end() ? std::nullopt : std::make_optional(it->second);
  };
}

absl::StatusOr<std::optional<ExternalLauncher>> Detect(const Variables& variables,
                                                       const std::string& host = "h") {
  return DetectExternalLauncher(LookupIn(variables), [&] { return host; });
}

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

TEST(ExternalLauncherTest, TheFirstHostOfSlurmsLists) {
  const struct {
    const char *list, *host;
  } kCases[] = {{"n1", "n1"},
                {"n1,n2", "n1"},
                {"n[1-4]", "n1"},
                {"n[03-05,9],login1", "n03"},
                {"n[7,9-11]", "n7"},
                {"rack[2-3]-n[08-09]", "rack2-n08"},
                {"gpu-a[1]-x.cluster,z", "gpu-a1-x.cluster"},
                {"n[1", ""},
                {"", ""}};
  for (const auto& one : kCases) EXPECT_EQ(FirstHost(one.list), one.host) << one.list;
}

const Variables kSlurm = {{"SLURM_JOB_ID", "4217"},      {"SLURM_NNODES", "4"},
                          {"SLURM_NODEID", "2"},         {"SLURM_JOB_NODELIST", "n[03-06]"},
                          {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NUM_NODES", "4"},
                          {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_NODELIST", "n[03-06]"}};

TEST(ExternalLauncherTest, SlurmSaysItAll) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto found, Detect(With(kSlurm, {{"SLURM_NTASKS_PER_NODE", "8"}})));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->name, "Slurm job 4217");
  EXPECT_EQ(found->nnodes, 4);
  EXPECT_EQ(found->node_rank, 2);
  EXPECT_EQ(found->nproc_per_node, 8);
  EXPECT_EQ(found->host, "n03");
  EXPECT_EQ(found->port, 29617);
  EXPECT_EQ(found->run_id, "slurm-4217");
}

TEST(ExternalLauncherTest, AStepOfFewerNodesCounts) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto found, Detect(With(kSlurm, {{"SLURM_STEP_NUM_NODES", "2"},
                                                                     {"SLURM_STEP_NUM_TASKS", "2"},
                                                                     {"SLURM_STEP_NODELIST", "n[05-06]"},
                                                                     {"SLURM_NTASKS_PER_NODE", "1"}})));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->nnodes, 2);
  EXPECT_EQ(found->host, "n05");
  EXPECT_EQ(found->nproc_per_node, 0);
}

TEST(ExternalLauncherTest, OneNodeIsNothingToTell) {
  EXPECT_EQ(Detect({})->has_value(), false);
  EXPECT_EQ(Detect({{"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NNODES", "1"}})->has_value(),
            false);
  // A batch script that did not use srun: one launcher, on the first node.
  EXPECT_EQ(Detect({{"SLURM_JOB_ID", "1"}, {"SLURM_NNODES", "4"}, {"SLURM_NODEID", "0"}})->has_value(),
            false);
  EXPECT_EQ(
      Detect(
          {{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})
          ->has_value(),
      false);
  // Slurm sets it for a program that uses PMI.
  EXPECT_EQ(Detect({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}})->has_value(), false);
}

TEST(ExternalLauncherTest, SeveralLaunchersOnANodeAreAMistake) {
  EXPECT_THAT(Detect(With(kSlurm, {{"SLURM_STEP_NUM_TASKS", "16"}})),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("srun has started 4 copies of `tandem run` on this node")));
  EXPECT_THAT(Detect({{"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("mpirun --map-by ppr:1:node")));
}

TEST(ExternalLauncherTest, SeveralLaunchersOnTheOnlyNodeAreAMistakeUnlessEachIsAJob) {
  const Variables four = With(kSlurm, {{"SLURM_NNODES", "1"},
                                       {"SLURM_STEP_NUM_NODES", "1"},
                                       {"SLURM_STEP_NUM_TASKS", "4"},
                                       {"SLURM_NTASKS_PER_NODE", "4"}});
  for (const char* nnodes : {"", "1", "1:1"}) {
    RunFlags flags{.nnodes = nnodes};
    EXPECT_THAT(ApplyExternalDefaults(
                    LookupIn(four), [] { return "h"; }, &flags),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("srun has started 4 copies of `tandem run` on this node"),
                               HasSubstr("use srun --ntasks-per-node=1"), HasSubstr("--nproc-per-node (4)"),
                               HasSubstr("--standalone"))));
  }
  RunFlags flags{.standalone = true};
  TANDEM_ASSERT_OK_AND_ASSIGN(std::string line, ApplyExternalDefaults(
                                                    LookupIn(four), [] { return "h"; }, &flags));
  EXPECT_EQ(line, "");
  // A script of sbatch runs once, whatever the number of tasks.
  Variables script = four;
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS"})
    script.erase(name);
  flags = {};
  TANDEM_ASSERT_OK_AND_ASSIGN(line, ApplyExternalDefaults(
                                        LookupIn(script), [] { return "h"; }, &flags));
  EXPECT_EQ(line, "");
}

TEST(ExternalLauncherTest, OpenMpiDoesNotSayWhereNodeZeroIs) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto found, Detect(With(kSlurm, {{"OMPI_COMM_WORLD_SIZE", "3"},
                                                                     {"OMPI_COMM_WORLD_RANK", "1"},
                                                                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->name, "Open MPI's mpirun");
  EXPECT_EQ(found->nnodes, 3);
  EXPECT_EQ(found->node_rank, 1);
  EXPECT_EQ(found->host, "");
}

TEST(ExternalLauncherTest, MpichIsUnderstoodToo) {
  const std::map<std::string, std::string> place = {{"PMI_SIZE", "3"}, {"PMI_RANK", "2"}};
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto found, Detect(With(place, {{"MPI_LOCALNRANKS", "1"}})));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->name, "MPICH's mpiexec");
  EXPECT_EQ(found->nnodes, 3);
  EXPECT_EQ(found->node_rank, 2);
  EXPECT_THAT(Detect(With(place, {{"MPI_LOCALNRANKS", "3"}})),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("mpiexec -ppn 1")));
}

TEST(ExternalLauncherTest, AnIndexedJobFindsItsFirstPod) {
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const auto found, Detect({{"JOB_COMPLETION_INDEX", "12"}}, "train-12.nodes.default.svc.cluster.local"));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->name, "Kubernetes indexed job train");
  EXPECT_EQ(found->node_rank, 12);
  EXPECT_EQ(found->nnodes, 0);
  EXPECT_EQ(found->host, "train-0.nodes.default.svc.cluster.local");
  EXPECT_EQ(found->run_id, "k8s-train");
}

TEST(ExternalLauncherTest, WithoutAServiceThePodsCannotFindEachOther) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto found, Detect({{"JOB_COMPLETION_INDEX", "2"}}, "train-2"));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->host, "");
  EXPECT_EQ(found->node_rank, 2);
}

TEST(ExternalLauncherTest, NonsenseIsNamed) {
  EXPECT_THAT(Detect(With(kSlurm, {{"SLURM_NODEID", "x"}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("SLURM_NODEID='x' is no number")));
}

TEST(ExternalLauncherTest, FlagsThatAreNotGivenAreFilledIn) {
  RunFlags flags;
  TANDEM_ASSERT_OK_AND_ASSIGN(std::string line, ApplyExternalDefaults(
                                                    LookupIn(kSlurm), [] { return "h"; }, &flags));
  EXPECT_EQ(
      line,
      "started by Slurm job 4217: --nnodes 4 --node-rank 2 --rdzv-endpoint n03:29617 --rdzv-id slurm-4217");
  EXPECT_EQ(flags.nnodes, "4");
  EXPECT_EQ(flags.node_rank, 2);
  EXPECT_EQ(flags.rdzv_endpoint, "n03:29617");
  EXPECT_EQ(flags.rdzv_id, "slurm-4217");

  flags = {.nnodes = "2", .node_rank = 1, .rdzv_endpoint = "a:1", .rdzv_id = "mine"};
  TANDEM_ASSERT_OK_AND_ASSIGN(line, ApplyExternalDefaults(
                                        LookupIn(kSlurm), [] { return "h"; }, &flags));
  EXPECT_EQ(line, "started by Slurm job 4217:");
  EXPECT_EQ(flags.rdzv_endpoint, "a:1");

  flags = {.standalone = true};
  TANDEM_ASSERT_OK_AND_ASSIGN(line, ApplyExternalDefaults(
                                        LookupIn(kSlurm), [] { return "h"; }, &flags));
  EXPECT_EQ(line, "");
  EXPECT_EQ(flags.nnodes, "");
}

}  // namespace
}  // namespace tandem::launcher
