// SPDX-License-Identifier: Apache-2.0
// Tests a job of several nodes, which are several launchers on this machine.

#include <signal.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "cluster/join.h"
#include "cluster/store/remote_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "rpc/channel.h"
#include "tests/launcher/forever.h"
#include "tests/testing/processes/etcd_server.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;
using testing::Lines;
using testing::ProcessesMarked;
using testing::ReadFile;
using testing::TandemProcess;
using testing::WaitUntilNoneMarked;

class NodesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = std::make_unique<TandemProcess>(std::vector<std::string>{"store", "--listen", "127.0.0.1:0"});
    ASSERT_TRUE(store_->WaitForOutput("\n"));
    endpoint_ = Lines(store_->out()).at(0);
  }
  std::map<std::string, std::string> Mark() const { return {{"TANDEM_TEST_MARK", dir_.path()}}; }
  bool NoLeaks() const { return WaitUntilNoneMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path())); }
  // The launcher of node `name`.
  std::unique_ptr<TandemProcess> Node(const std::string& name, const std::string& nnodes,
                                      const std::vector<std::string>& flags,
                                      const std::string& script) const {
    std::vector<std::string> args = {"run",
                                     "--nnodes",
                                     nnodes,
                                     "--rdzv-backend",
                                     "c10d",
                                     "--rdzv-endpoint",
                                     endpoint_,
                                     "--rdzv-id",
                                     "job",
                                     "--log-dir",
                                     dir_.File(name),
                                     "--rdzv-conf",
                                     "is_host=false,lease=6,last_call_timeout=0.5,join_timeout=30"};
    args.insert(args.end(), flags.begin(), flags.end());
    for (const std::string& word : {std::string("/bin/sh"), std::string("-c"), script}) args.push_back(word);
    return std::make_unique<TandemProcess>(args, Mark());
  }

  testing::TempDir dir_;
  std::unique_ptr<TandemProcess> store_;
  std::string endpoint_;
};

TEST_F(NodesTest, RanksGoByNodeAndThenByProcess) {
  const std::string script =
      "echo at $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE "
      "$MASTER_ADDR:$MASTER_PORT $TANDEM_STORE";
  auto b = Node("b", "2", {"--node-rank", "1", "--nproc-per-node", "1"}, script);
  auto a = Node("a", "2", {"--node-rank", "0", "--nproc-per-node", "2"}, script);
  EXPECT_EQ(a->Wait(), 0) << a->err();
  EXPECT_EQ(b->Wait(), 0) << b->err();
  EXPECT_THAT(a->out(), AllOf(HasSubstr("[worker/0] at 0/3 0/2 0/2 127.0.0.1:"),
                              HasSubstr("[worker/1] at 1/3 1/2 0/2 127.0.0.1:")));
  EXPECT_THAT(b->out(), HasSubstr("[worker/2] at 2/3 0/1 1/2 127.0.0.1:"));
  const std::string where =
      a->out().substr(a->out().find("127.0.0.1:"), a->out().find('\n') - a->out().find("127.0.0.1:"));
  EXPECT_THAT(b->out(), HasSubstr(where));  // MASTER_PORT and store are the first node's
}

TEST_F(NodesTest, CopiesOfAShardAreOnDifferentNodes) {
  const std::string script = absl::StrCat("until [ -e ", dir_.File("go"), " ]; do sleep 0.05; done");
  const std::vector<std::string> flags = {"--workers", "1", "--ps", "1", "--ps-followers", "1"};
  auto with_rank = [&](const char* rank) {
    std::vector<std::string> all = flags;
    all.insert(all.end(), {"--node-rank", rank});
    return all;
  };
  auto a = Node("a", "2", with_rank("0"), script);
  auto b = Node("b", "2", with_rank("1"), script);
  for (const char* line : {"copy 0 of shard 0 of 2", "copy 1 of shard 1 of 2"})
    EXPECT_TRUE(a->WaitForOutput(line)) << a->err();
  for (const char* line : {"copy 0 of shard 1 of 2", "copy 1 of shard 0 of 2"})
    EXPECT_TRUE(b->WaitForOutput(line)) << b->err();
  for (auto* node : {a.get(), b.get()}) EXPECT_TRUE(node->WaitForOutput("follower of shard")) << node->err();
  std::ofstream(dir_.File("go")) << "go";
  EXPECT_EQ(a->Wait(), 0) << a->err();
  EXPECT_EQ(b->Wait(), 0) << b->err();
  EXPECT_THAT(a->err(), Not(HasSubstr("warning")));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(NodesTest, NodesWithDifferentNumbersOfFollowersAreRefused) {
  auto a = Node("a", "2", {"--workers", "1", "--ps", "1", "--ps-followers", "1"}, "exit 0");
  auto b = Node("b", "2", {"--workers", "1", "--ps", "1"}, "exit 0");
  EXPECT_NE(a->Wait(), 0);
  EXPECT_NE(b->Wait(), 0);
  EXPECT_THAT(absl::StrCat(a->err(), b->err()), HasSubstr("give the same --ps-followers on all nodes"));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(NodesTest, AFailureIsNamedOnEveryNode) {
  auto a = Node("a", "2", {}, absl::StrCat("echo up; exec ", kForever));
  auto b = Node("b", "2", {}, "echo out of memory >&2; exit 9");
  EXPECT_EQ(b->Wait(), 9) << b->err();
  EXPECT_EQ(a->Wait(), 9) << a->err();
  EXPECT_THAT(b->err(), ContainsRegex("worker/[01] \\(pid [0-9]+\\) exited with code 9; stopping the job"));
  EXPECT_THAT(
      a->err(),
      ContainsRegex("the job failed: worker/[01] \\(pid [0-9]+\\) exited with code 9, on 127.0.0.1: out "
                    "of memory; stopping it here"));
  EXPECT_TRUE(NoLeaks());
}

// Stops a job with workers on one node and a server on another. The workers look for the server while they
// save.
class ServerNodeTest : public NodesTest {
 protected:
  void StopAndExpectThatTheServerLives(bool signal_server_node) {
    const std::string save = absl::StrCat(
        "trap 'i=0; while [ $i -lt 20 ]; do sleep 0.02; i=$((i+1)); done; kill -0 $(cat ",
        dir_.File("server"),
        ") && echo the server lives; exit 75' TERM; echo up $RANK; while :; do sleep 0.05; done");
    auto workers = Node("workers", "2", {"--workers", "2", "--ps", "0"}, save);
    auto servers = Node("servers", "2", {"--workers", "0", "--ps", "1"}, save);
    for (const char* up : {"up 0", "up 1"}) ASSERT_TRUE(workers->WaitForOutput(up)) << workers->err();
    ASSERT_TRUE(servers->WaitForOutput("serving at")) << servers->err();
    for (const pid_t pid : ProcessesMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path()))) {
      if (absl::StrContains(ReadFile(absl::StrCat("/proc/", pid, "/environ")), "TANDEM_PS_INDEX=0")) {
        std::ofstream(dir_.File("server")) << pid;
      }
    }
    if (signal_server_node) servers->Signal(SIGTERM);
    workers->Signal(SIGTERM);
    EXPECT_EQ(workers->Wait(), 75) << workers->err();
    EXPECT_EQ(servers->Wait(), 75) << servers->err();
    EXPECT_THAT(workers->out(),
                AllOf(HasSubstr("[worker/0] the server lives"), HasSubstr("[worker/1] the server lives")));
    EXPECT_TRUE(NoLeaks());
  }
};

TEST_F(ServerNodeTest, ServersOutliveTheWorkersOfAnotherNode) { StopAndExpectThatTheServerLives(false); }

TEST_F(ServerNodeTest, ServersOutliveTheWorkersOfAnotherNodeIfBothLaunchersAreSignalled) {
  StopAndExpectThatTheServerLives(true);
}

TEST_F(NodesTest, ACrashOnAnotherNodeIsNoRequestToStop) {
  auto a = Node("a", "2", {"--node-rank", "0"}, "trap 'exit 75' TERM; echo up; while :; do sleep 0.05; done");
  auto b = Node("b", "2", {"--node-rank", "1"},
                absl::StrCat("until [ -e ", dir_.File("go"), " ]; do sleep 0.05; done; kill -SEGV $$"));
  ASSERT_TRUE(a->WaitForOutput("up")) << a->err();
  std::ofstream(dir_.File("go")) << "go";
  EXPECT_EQ(b->Wait(), 139) << b->err();
  EXPECT_EQ(a->Wait(), 139) << a->err();
  EXPECT_TRUE(NoLeaks());
}

TEST_F(NodesTest, AFailureRestartsEveryNode) {
  const std::string script =
      "echo try $TORCHELASTIC_RESTART_COUNT of $RANK; "
      "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then if [ $RANK = 1 ]; then exit 9; fi; exec tail -f "
      "/dev/null; fi";
  auto a = Node("a", "2", {"--max-restarts", "1"}, script);
  auto b = Node("b", "2", {"--max-restarts", "1"}, script);
  EXPECT_EQ(a->Wait(), 0) << a->err();
  EXPECT_EQ(b->Wait(), 0) << b->err();
  const std::string out = absl::StrCat(a->out(), b->out());
  for (const char* line : {"try 1 of 0", "try 1 of 1"}) EXPECT_THAT(out, HasSubstr(line));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(NodesTest, ANodeThatDiesIsReplacedByTheOthers) {
  const std::string script =
      absl::StrCat("echo world of $WORLD_SIZE; if [ $TANDEM_EPOCH = 3 ]; then exit 0; fi; exec ", kForever);
  auto a = Node("a", "1:2", {"--max-restarts", "3"}, script);
  ASSERT_TRUE(a->WaitForOutput("world of 1"));
  auto b = Node("b", "1:2", {"--max-restarts", "3"}, script);
  ASSERT_TRUE(b->WaitForOutput("world of 2")) << b->err() << a->err();
  b->Signal(SIGKILL);
  EXPECT_EQ(b->Wait(), 137);
  EXPECT_EQ(a->Wait(), 0) << a->err();
  EXPECT_THAT(a->err(), HasSubstr("has been silent for"));
  EXPECT_EQ(Lines(a->out()).back(), "[worker/0] world of 1");
  EXPECT_TRUE(NoLeaks());
}

TEST_F(NodesTest, WithEtcdTheFirstNodeMayDie) {
  if (!testing::EtcdServer::Installed()) GTEST_SKIP() << "etcd-server is not installed";
  const auto cluster = testing::EtcdServer::StartCluster(1);
  ASSERT_EQ(cluster.size(), 1u);
  const std::string script =
      absl::StrCat("echo world of $WORLD_SIZE; if [ $TANDEM_EPOCH != 1 ]; then exit 0; fi; exec ", kForever);
  const auto node = [&](const char* name, const char* nnodes) {
    return std::make_unique<TandemProcess>(
        std::vector<std::string>{"run", "--nnodes", nnodes, "--rdzv-backend", "etcd", "--rdzv-endpoint",
                                 cluster[0]->address(), "--rdzv-id", "job", "--max-restarts", "3",
                                 "--log-dir", dir_.File(name), "--rdzv-conf",
                                 "lease=6,last_call_timeout=20,join_timeout=30", "/bin/sh", "-c", script},
        Mark());
  };
  auto a = node("a", "1:2"), b = node("b", "1:2");
  ASSERT_TRUE(a->WaitForOutput("world of 2")) << a->err();
  ASSERT_TRUE(b->WaitForOutput("world of 2")) << b->err();
  // The first node of the round serves its store and reserves MASTER_PORT.
  const bool a_first = absl::StrContains(a->out(), "worker/0");
  auto& first = a_first ? a : b;
  auto& second = a_first ? b : a;
  first->Signal(SIGKILL);
  EXPECT_EQ(first->Wait(), 137);
  EXPECT_EQ(second->Wait(), 0) << second->err();
  EXPECT_THAT(second->out(), HasSubstr("world of 1"));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(NodesTest, StatusSeesTheNodesOfAJobWhoseStateIsInEtcd) {
  if (!testing::EtcdServer::Installed()) GTEST_SKIP() << "etcd-server is not installed";
  const auto cluster = testing::EtcdServer::StartCluster(1);
  ASSERT_EQ(cluster.size(), 1u);
  const std::string where = absl::StrCat("etcd://", cluster[0]->address(), "/tandem/job");
  testing::Finished nobody = testing::RunTandem({"status", "--store", where});
  EXPECT_EQ(nobody.exit_code, 1);
  EXPECT_THAT(nobody.err, HasSubstr(absl::StrCat("no launchers meet at ", where)));
  const auto node = [&](const char* name) {
    return std::make_unique<TandemProcess>(
        std::vector<std::string>{"run",
                                 "--nnodes",
                                 "1:2",
                                 "--nproc-per-node",
                                 "3",
                                 "--rdzv-backend",
                                 "etcd",
                                 "--rdzv-endpoint",
                                 cluster[0]->address(),
                                 "--rdzv-id",
                                 "job",
                                 "--max-restarts",
                                 "3",
                                 "--log-dir",
                                 dir_.File(name),
                                 "--rdzv-conf",
                                 "lease=10,last_call_timeout=20,join_timeout=30,etcd_lease=10",
                                 "/bin/sh",
                                 "-c",
                                 absl::StrCat("echo world of $WORLD_SIZE; exec ", kForever)},
        Mark());
  };
  auto a = node("a"), b = node("b");
  for (auto* one : {&a, &b}) ASSERT_TRUE((*one)->WaitForOutput("world of 6")) << (*one)->err();
  const testing::Finished asked = testing::RunTandem({"status", "--json", "--store", where});
  ASSERT_EQ(asked.exit_code, 0) << asked.err;
  const Json rounds = ParseJson(asked.out).at("rounds");
  EXPECT_EQ(rounds["run_id"], "job");
  EXPECT_EQ(rounds["phase"], "running");
  EXPECT_EQ(rounds["epoch"], 1);
  EXPECT_EQ(rounds["max_restarts"], 3);
  ASSERT_EQ(rounds["nodes"].size(), 2u);
  EXPECT_EQ(rounds["nodes"][1]["index"], 1);
  EXPECT_EQ(rounds["nodes"][1]["processes"]["worker"], 3);
  // The job file of every node names the rendezvous.
  for (const char* name : {"a", "b"}) {
    const testing::Finished text = testing::RunTandem({"status", "--job", dir_.File(name)});
    EXPECT_EQ(text.exit_code, 0) << text.err;
    EXPECT_THAT(text.out,
                HasSubstr("Job job: running, epoch 1, 0 of 3 restarts; 1 to 2 nodes meet at etcd://"));
    EXPECT_THAT(text.out, ContainsRegex("    1  127.0.0.1-.*  3 worker   in the round"));
  }
  a->Signal(SIGTERM);
  EXPECT_EQ(a->Wait(), 143) << a->err();
  b->Signal(SIGTERM);
  EXPECT_EQ(b->Wait(), 143) << b->err();
  EXPECT_TRUE(NoLeaks());
}

TEST_F(NodesTest, AWorkerKilledByASignalIsAFailureOnTheOtherNodes) {
  auto a = Node("a", "2", {}, "trap 'exit 75' TERM; echo up; while :; do sleep 0.05; done");
  auto b =
      Node("b", "2", {},
           absl::StrCat("echo up; until [ -e ", dir_.File("go"), " ]; do sleep 0.05; done; kill -TERM $$"));
  for (auto* node : {&a, &b}) ASSERT_TRUE((*node)->WaitForOutput("up")) << (*node)->err();
  std::ofstream(dir_.File("go")) << "go";
  EXPECT_EQ(b->Wait(), 143) << b->err();
  // Not 75, with which a job ends that was asked to stop and has saved its state.
  EXPECT_EQ(a->Wait(), 143) << a->err();
  EXPECT_THAT(a->err(), HasSubstr("the job failed: worker/"));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(NodesTest, TheNodeThatServesTheJobsStoreOutlivesTheWorkersThatSave) {
  // The first node has saved at once; the other one goes on until the file is there.
  auto first =
      Node("first", "2", {"--node-rank", "0"}, "trap 'exit 75' TERM; echo up; while :; do sleep 0.05; done");
  auto second =
      Node("second", "2", {"--node-rank", "1"},
           absl::StrCat("trap 'echo saving; until [ -e ", dir_.File("saved"),
                        " ]; do sleep 0.05; done; exit 75' TERM; echo up; while :; do sleep 0.05; done"));
  for (auto* node : {&first, &second}) ASSERT_TRUE((*node)->WaitForOutput("up")) << (*node)->err();
  first->Signal(SIGTERM);
  ASSERT_TRUE(second->WaitForOutput("saving")) << second->err();
  ASSERT_TRUE(first->WaitForOutput("waiting for the workers of the other nodes")) << first->err();
  std::ofstream(dir_.File("saved")) << "saved";
  EXPECT_EQ(first->Wait(), 75) << first->err();
  EXPECT_EQ(second->Wait(), 75) << second->err();
  EXPECT_TRUE(NoLeaks());
}

TEST_F(NodesTest, ANodeThatLeavesAnElasticJobLeavesNoKeyBehind) {
  const std::string forever = absl::StrCat("echo up; exec ", kForever);
  auto a = Node("a", "1:2", {}, forever), b = Node("b", "1:2", {}, forever);
  for (auto* node : {&a, &b}) ASSERT_TRUE((*node)->WaitForOutput("up")) << (*node)->err();
  ASSERT_TRUE(a->WaitForOutput("of 2 in round")) << a->err();
  b->Signal(SIGTERM);
  EXPECT_EQ(b->Wait(), 143) << b->err();
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, cluster::ConnectStore(endpoint_));
  cluster::RemoteStore store(std::move(channel));
  const absl::StatusOr<std::vector<std::string>> keys = store.List("launchers/job/");
  TANDEM_EXPECT_OK(keys);
  EXPECT_THAT(*keys, ::testing::IsEmpty());
  a->Signal(SIGTERM);
  EXPECT_EQ(a->Wait(), 143) << a->err();
}

TEST_F(NodesTest, InterruptedWhileItWaitsForOthersItEnds) {
  auto a = Node("a", "2", {}, "true");
  // It has joined once its counter is in the store; it prints no line then.
  ASSERT_TRUE(a->WaitForOutput("waiting for")) << a->err();
  a->Signal(SIGINT);
  EXPECT_EQ(a->Wait(), 130);
  EXPECT_TRUE(NoLeaks());
}

TEST_F(NodesTest, TheStaticRendezvousIsServedByNodeZero) {
  // The port was free a moment ago, but another process may have taken it, so a few ports are tried.
  for (int attempt = 0; attempt < 5; ++attempt) {
    TandemProcess probe({"run", "--log-dir", dir_.File("probe"), "/bin/sh", "-c", "echo $MASTER_PORT"});
    ASSERT_EQ(probe.Wait(), 0) << probe.err();
    const std::string port(absl::StripPrefix(Lines(probe.out()).at(0), "[worker/0] "));
    const auto node = [&](const char* rank) {
      return std::make_unique<TandemProcess>(
          std::vector<std::string>{"run", "--nnodes", "2", "--node-rank", rank, "--master-addr", "127.0.0.1",
                                   "--master-port", port, "--log-dir", dir_.File(rank), "/bin/sh", "-c",
                                   "echo $RANK of $WORLD_SIZE"},
          Mark());
    };
    auto one = node("1"), zero = node("0");
    const int code = zero->Wait();
    if (code != 0 && absl::StrContains(zero->err(), "in use")) {
      one->Signal(SIGINT);
      continue;
    }
    EXPECT_EQ(code, 0) << zero->err();
    EXPECT_EQ(one->Wait(), 0) << one->err();
    EXPECT_EQ(zero->out(), "[worker/0] 0 of 2\n");
    EXPECT_EQ(one->out(), "[worker/1] 1 of 2\n");
    EXPECT_TRUE(NoLeaks());
    return;
  }
  FAIL() << "no port was free";
}

TEST_F(NodesTest, SlurmsVariablesAreDefaultsThatAreToldInALine) {
  std::map<std::string, std::string> variables = Mark();
  variables.insert({{"SLURM_JOB_ID", "17"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_NNODES", "2"},
                    {"SLURM_NODEID", "0"},
                    {"SLURM_JOB_NODELIST", "n[1-2]"}});
  TandemProcess alone(
      {"run", "--nnodes", "1", "--log-dir", dir_.File("one"), "/bin/sh", "-c", "echo $WORLD_SIZE"},
      variables);
  EXPECT_EQ(alone.Wait(), 0) << alone.err();
  EXPECT_EQ(alone.out(), "[worker/0] 1\n");
  TandemProcess zero(
      {"run", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint_, "--rdzv-conf", "is_host=false",
       "--log-dir", dir_.File("a"), "/bin/sh", "-c", "echo $RANK of $WORLD_SIZE in $TANDEM_RUN_ID"},
      variables);
  variables["SLURM_NODEID"] = "1";
  TandemProcess one(
      {"run", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint_, "--rdzv-conf", "is_host=false",
       "--log-dir", dir_.File("b"), "/bin/sh", "-c", "echo $RANK of $WORLD_SIZE in $TANDEM_RUN_ID"},
      variables);
  EXPECT_EQ(zero.Wait(), 0) << zero.err();
  EXPECT_EQ(one.Wait(), 0) << one.err();
  EXPECT_EQ(zero.out(), "[worker/0] 0 of 2 in slurm-17\n");
  EXPECT_EQ(one.out(), "[worker/1] 1 of 2 in slurm-17\n");
  EXPECT_THAT(zero.err(), HasSubstr("started by Slurm job 17: --nnodes 2 --node-rank 0 --rdzv-id slurm-17"));
}

}  // namespace
}  // namespace tandem::launcher
