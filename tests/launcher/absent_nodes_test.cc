// SPDX-License-Identifier: Apache-2.0
// A job goes on when a node dies on which every process is one that is started again alone, and takes the
// node back. The nodes are launchers on this machine.

#include <signal.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
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
using testing::Lines;
using ::testing::Not;
using testing::ProcessesMarked;
using testing::ReadFile;
using testing::TandemProcess;
using testing::WaitUntilNoneMarked;
using Words = std::vector<std::string>;

constexpr char kAbsent[] = "has been silent for";
constexpr char kTaken[] = " takes the place of node ";
const Words kServer = {"--workers", "0", "--ps", "1", "--ps-followers", "1"};
const Words kWorker = {"--workers", "1", "--ps", "0"};
const Words kActor = {"--workers", "0", "--actors", "1"};

class AbsentNodesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = std::make_unique<TandemProcess>(Words{"store", "--listen", "127.0.0.1:0"});
    ASSERT_TRUE(store_->WaitForOutput("\n"));
    endpoint_ = Lines(store_->out()).at(0);
  }
  std::string mark() const { return absl::StrCat("TANDEM_TEST_MARK=", dir_.path()); }
  bool NoLeaks() const { return WaitUntilNoneMarked(mark()); }
  // Starts the launcher of a node. A `rank` of -1 is not given.
  std::unique_ptr<TandemProcess> Start(const std::string& name, int rank, Words flags,
                                       const std::string& script, const std::string& nnodes = "3") const {
    Words args = {"run",
                  "--nnodes",
                  nnodes,
                  "--rdzv-backend",
                  backend_,
                  "--rdzv-endpoint",
                  endpoint_,
                  "--rdzv-id",
                  "job",
                  "--local-addr",
                  absl::StrCat("127.0.78.", rank + 2),
                  "--log-dir",
                  dir_.File(name),
                  "--rdzv-conf",
                  absl::StrCat(backend_ == "etcd" ? "" : "is_host=false,",
                               "lease=3,last_call_timeout=20,join_timeout=60")};
    if (rank >= 0) flags.insert(flags.end(), {"--node-rank", absl::StrCat(rank)});
    args.insert(args.end(), flags.begin(), flags.end());
    for (const std::string& word : {std::string("/bin/sh"), std::string("-c"), script}) args.push_back(word);
    return std::make_unique<TandemProcess>(
        args, std::map<std::string, std::string>{{"TANDEM_TEST_MARK", dir_.path()}});
  }
  // A worker that counts its starts and ends well when Go is called.
  std::string WorkerScript() const {
    return absl::StrCat("echo up $RANK; until [ -e ", dir_.File("go"), " ]; do sleep 0.05; done; echo done");
  }
  // A process that says how often it was started, and whether an earlier one with its rank still lives.
  std::string ActorScript() const {
    const std::string file = absl::StrCat(dir_.File("pid"), "-$ROLE_RANK");
    return absl::StrCat(
        "if [ $TANDEM_ROLE = worker ]; then ", WorkerScript(), "; exit; fi; if [ -e ", file,
        " ] && grep -qs '^State:.[^Z]' /proc/$(cat ", file, ")/status; then echo two at once; fi; echo $$ > ",
        file, "; echo life $ROLE_RANK.${TANDEM_PROCESS_RESTARTS:-0}.$TANDEM_EPOCH; exec ", kForever);
  }
  void Go() const { std::ofstream(dir_.File("go")) << "go"; }
  // Returns the process of the launcher that has this in its environment, or 0.
  pid_t ProcessOf(const TandemProcess& launcher, const std::string& variable) const {
    for (const pid_t pid : ProcessesMarked(mark())) {
      const std::string status = ReadFile(absl::StrCat("/proc/", pid, "/status"));
      if (absl::StrContains(status, absl::StrCat("PPid:\t", launcher.pid(), "\n")) &&
          absl::StrContains(ReadFile(absl::StrCat("/proc/", pid, "/environ")), variable)) {
        return pid;
      }
    }
    return 0;
  }

  testing::TempDir dir_;
  std::unique_ptr<TandemProcess> store_;
  std::string endpoint_, backend_ = "c10d";
};

TEST_F(AbsentNodesTest, AServerNodeDiesAndComesBackWhileTheWorkersGoOn) {
  auto w = Start("w", 0, kWorker, WorkerScript());
  auto a = Start("a", 1, kServer, ""), b = Start("b", 2, kServer, "");
  ASSERT_TRUE(w->WaitForOutput("up 0")) << w->err();
  for (auto* node : {&a, &b}) {
    ASSERT_TRUE((*node)->WaitForOutput("primary of shard")) << (*node)->err();
    ASSERT_TRUE((*node)->WaitForOutput("follower of shard")) << (*node)->err();
  }
  a->Signal(SIGKILL);
  EXPECT_EQ(a->Wait(), 137);
  for (auto* node : {&w, &b}) {
    ASSERT_TRUE((*node)->WaitForOutput(kAbsent)) << (*node)->err();
    EXPECT_THAT(
        (*node)->err(),
        ContainsRegex("node 127\\.0\\.78\\.3-[^ ]* \\(127\\.0\\.78\\.3\\) has been silent for [0-9.]+s "
                      "\\(lease 3s\\).* It had 1 parameter server, 1 follower; the round goes on"));
  }
  a = Start("a2", 1, kServer, "");
  ASSERT_TRUE(a->WaitForOutput("in the place of a node that was absent")) << a->err();
  for (auto* node : {&w, &b}) ASSERT_TRUE((*node)->WaitForOutput(kTaken)) << (*node)->err();
  // The processes hold the same copies as before.
  for (const char* line :
       {"copy 0 of shard 0 of 2", "copy 1 of shard 1 of 2", "follower of shard 0", "follower of shard 1"}) {
    ASSERT_TRUE(a->WaitForOutput(line)) << a->err();
  }
  Go();
  EXPECT_EQ(w->Wait(), 0) << w->err();
  EXPECT_EQ(a->Wait(), 0) << a->err();
  EXPECT_EQ(b->Wait(), 0) << b->err();
  EXPECT_EQ(w->out(), "[worker/0] up 0\n[worker/0] done\n");
  for (auto* node : {&w, &a, &b}) EXPECT_THAT((*node)->err(), Not(HasSubstr("starting again")));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(AbsentNodesTest, TheJobEndsWellThoughTheNodeDoesNotComeBack) {
  auto w = Start("w", 0, kWorker, WorkerScript());
  auto a = Start("a", 1, kServer, ""), b = Start("b", 2, kServer, "");
  ASSERT_TRUE(w->WaitForOutput("up 0")) << w->err();
  for (auto* node : {&a, &b}) ASSERT_TRUE((*node)->WaitForOutput("follower of shard")) << (*node)->err();
  b->Signal(SIGKILL);
  ASSERT_TRUE(w->WaitForOutput(kAbsent)) << w->err();
  const testing::Finished status = testing::RunTandem({"status", "--job", dir_.File("w")});
  EXPECT_THAT(status.out, AllOf(HasSubstr("running, epoch 1, 0 of 0 restarts"),
                                ContainsRegex("    2  127.0.78.4-.* absent\n"),
                                ContainsRegex("Node 127.0.78.4-[^ ]* has been silent")));
  Go();
  EXPECT_EQ(w->Wait(), 0) << w->err();
  EXPECT_EQ(a->Wait(), 0) << a->err();
  // A launcher that comes too late is told so.
  auto late = Start("late", 2, kServer, "");
  EXPECT_EQ(late->Wait(), 1);
  EXPECT_THAT(late->err(), HasSubstr("is over: all nodes have finished"));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(AbsentNodesTest, AShardWithoutALivingCopyFailsTheJobByName) {
  auto w = Start("w", 0, kWorker, WorkerScript());
  auto a = Start("a", 1, kServer, ""), b = Start("b", 2, kServer, "");
  ASSERT_TRUE(w->WaitForOutput("up 0")) << w->err();
  for (auto* node : {&a, &b}) ASSERT_TRUE((*node)->WaitForOutput("follower of shard")) << (*node)->err();
  a->Signal(SIGKILL);
  b->Signal(SIGKILL);
  EXPECT_EQ(w->Wait(), 1) << w->err();
  EXPECT_THAT(w->err(), ContainsRegex("the job failed: shard [01] of 2 has no copy left: absent are node "
                                      "127.0.78.3-.*, node 127.0.78.4-.*; stopping the job"));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(AbsentNodesTest, ActorsComeBackWithTheNextNumberOfRestarts) {
  auto w = Start("w", 0, kWorker, ActorScript(), "2");
  auto a = Start("a", 1, kActor, ActorScript(), "2");
  ASSERT_TRUE(w->WaitForOutput("up 0")) << w->err();
  ASSERT_TRUE(a->WaitForOutput("life 0.0.1")) << a->err();
  ASSERT_EQ(::kill(ProcessOf(*a, "TANDEM_ROLE=actor"), SIGKILL), 0);
  ASSERT_TRUE(a->WaitForOutput("life 0.1.1")) << a->err();
  a->Signal(SIGKILL);
  // The launcher comes back before its lease is over, and waits for that.
  a = Start("a2", 1, kActor, ActorScript(), "2");
  ASSERT_TRUE(a->WaitForOutput("life 0.2.1")) << a->err();
  Go();
  EXPECT_EQ(w->Wait(), 0) << w->err();
  EXPECT_EQ(a->Wait(), 0) << a->err();
  EXPECT_THAT(w->err(), AllOf(HasSubstr("t had 1 actor; the round goes on"), HasSubstr(kTaken)));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(AbsentNodesTest, ALauncherThatWasOnlyStoppedEndsItsProcessesAndComesBack) {
  auto w = Start("w", 0, kWorker, ActorScript(), "2");
  auto a = Start("a", 1, kActor, ActorScript(), "2");
  ASSERT_TRUE(w->WaitForOutput("up 0")) << w->err();
  ASSERT_TRUE(a->WaitForOutput("life 0.0.1")) << a->err();
  const pid_t actor = ProcessOf(*a, "TANDEM_ROLE=actor");
  a->Signal(SIGSTOP);
  ASSERT_TRUE(w->WaitForOutput(kAbsent)) << w->err();
  EXPECT_TRUE(testing::WaitUntilGone(actor)) << "it outlives the lease of its stopped launcher";
  a->Signal(SIGCONT);
  ASSERT_TRUE(a->WaitForOutput("life 0.1.1")) << a->err();
  EXPECT_THAT(a->err(), HasSubstr("this node is no longer part of the job"));
  Go();
  EXPECT_EQ(w->Wait(), 0) << w->err();
  EXPECT_EQ(a->Wait(), 0) << a->err();
  EXPECT_THAT(a->out(), Not(HasSubstr("two at once")));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(AbsentNodesTest, ALauncherWhosePlaceWasTakenEndsItsProcessesAndStartsNone) {
  auto w = Start("w", 0, kWorker, ActorScript(), "2");
  auto a = Start("a", 1, kActor, ActorScript(), "2");
  ASSERT_TRUE(w->WaitForOutput("up 0")) << w->err();
  ASSERT_TRUE(a->WaitForOutput("life 0.0.1")) << a->err();
  a->Signal(SIGSTOP);
  auto successor = Start("a2", 1, kActor, ActorScript(), "2");
  ASSERT_TRUE(successor->WaitForOutput("life 0.1.1")) << successor->err();
  a->Signal(SIGCONT);
  EXPECT_EQ(a->Wait(), 1) << a->err();
  EXPECT_THAT(a->err(), AllOf(HasSubstr("this node is no longer part of the job"),
                              ContainsRegex("node rank 1 is taken by node .*, which lives")));
  EXPECT_EQ(a->out(), "[actor/0] life 0.0.1\n");
  Go();
  EXPECT_EQ(w->Wait(), 0) << w->err();
  EXPECT_EQ(successor->Wait(), 0) << successor->err();
  EXPECT_THAT(successor->out(), Not(HasSubstr("two at once")));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(AbsentNodesTest, ALauncherWithAnotherCommandIsRefusedByName) {
  auto w = Start("w", 0, kWorker, ActorScript(), "2");
  auto a = Start("a", 1, kActor, ActorScript(), "2");
  ASSERT_TRUE(a->WaitForOutput("life 0.0.1")) << a->err();
  a->Signal(SIGKILL);
  ASSERT_TRUE(w->WaitForOutput(kAbsent)) << w->err();
  auto more = Start("more", 1, {"--workers", "0", "--actors", "2"}, ActorScript(), "2");
  auto other = Start("other", 1, kActor, "echo something else", "2");
  EXPECT_EQ(more->Wait(), 1);
  EXPECT_EQ(other->Wait(), 1);
  EXPECT_THAT(more->err(),
              ContainsRegex("cannot take the place of node 127.0.78.3-.* it had 1 actor, and this "
                            "one has 2 actor; start its launcher with the same command"));
  EXPECT_THAT(other->err(), HasSubstr("another command line for the role 'actor'"));
  Go();
  EXPECT_EQ(w->Wait(), 0) << w->err();
  EXPECT_EQ(w->out(), "[worker/0] up 0\n[worker/0] done\n");
  EXPECT_TRUE(NoLeaks());
}

TEST_F(AbsentNodesTest, WithoutNodeRanksInAnElasticJobItIsTheSame) {
  // The node with the worker becomes the first one, whichever comes first.
  auto a = Start("a", -1, kActor, ActorScript(), "1:2");
  ASSERT_TRUE(a->WaitForOutput("waiting for a round")) << a->err();
  auto w = Start("w", -1, kWorker, ActorScript(), "1:2");
  ASSERT_TRUE(w->WaitForOutput("up 0")) << w->err();
  ASSERT_TRUE(a->WaitForOutput("life 0.0.1")) << a->err();
  EXPECT_THAT(w->err(), HasSubstr("node 0 of 2 in round 1"));
  a->Signal(SIGTERM);  // it leaves
  EXPECT_EQ(a->Wait(), 143) << a->err();
  ASSERT_TRUE(w->WaitForOutput("has left; it had 1 actor")) << w->err();
  a = Start("a2", -1, kActor, ActorScript(), "1:2");
  ASSERT_TRUE(a->WaitForOutput("life 0.1.1")) << a->err();
  Go();
  EXPECT_EQ(w->Wait(), 0) << w->err();
  EXPECT_EQ(a->Wait(), 0) << a->err();
  EXPECT_THAT(w->err(), Not(HasSubstr("starting again")));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(AbsentNodesTest, TheDeathOfANodeWithWorkersEndsTheRoundAsEver) {
  auto w = Start("w", 0, {"--workers", "1", "--max-restarts", "1"}, ActorScript(), "3");
  auto v = Start("v", 1, {"--workers", "1", "--max-restarts", "1"}, ActorScript(), "3");
  Words flags = kActor;
  flags.insert(flags.end(), {"--max-restarts", "1"});
  auto a = Start("a", 2, flags, ActorScript(), "3");
  ASSERT_TRUE(w->WaitForOutput("up 0")) << w->err();
  ASSERT_TRUE(v->WaitForOutput("up 1")) << v->err();
  ASSERT_TRUE(a->WaitForOutput("life 0.0.1")) << a->err();
  // First the actor's node dies and comes back, which takes no restart.
  a->Signal(SIGKILL);
  a = Start("a2", 2, flags, ActorScript(), "3");
  ASSERT_TRUE(a->WaitForOutput("life 0.1.1")) << a->err();
  v->Signal(SIGKILL);
  ASSERT_TRUE(w->WaitForOutput("starting again: node 127.0.78.3-")) << w->err();
  v = Start("v2", 1, {"--workers", "1", "--max-restarts", "1"}, ActorScript(), "3");
  ASSERT_TRUE(a->WaitForOutput("life 0.0.2")) << a->err();
  ASSERT_TRUE(v->WaitForOutput("up 1")) << v->err();
  // No process of this round has been life 1 of it.
  a->Signal(SIGKILL);
  a = Start("a3", 2, flags, ActorScript(), "3");
  ASSERT_TRUE(a->WaitForOutput("life 0.1.2")) << a->err();
  Go();
  EXPECT_EQ(w->Wait(), 0) << w->err();
  EXPECT_EQ(v->Wait(), 0) << v->err();
  EXPECT_EQ(a->Wait(), 0) << a->err();
  EXPECT_TRUE(NoLeaks());
}

TEST_F(AbsentNodesTest, WithEtcdANodeOfActorsComesBackAsWell) {
  if (!testing::EtcdServer::Installed()) GTEST_SKIP() << "etcd-server is not installed";
  const auto cluster = testing::EtcdServer::StartCluster(1);
  ASSERT_EQ(cluster.size(), 1u);
  endpoint_ = cluster[0]->address();
  backend_ = "etcd";
  auto w = Start("w", 0, kWorker, ActorScript(), "2");
  auto a = Start("a", 1, kActor, ActorScript(), "2");
  ASSERT_TRUE(w->WaitForOutput("up 0")) << w->err();
  ASSERT_TRUE(a->WaitForOutput("life 0.0.1")) << a->err();
  a->Signal(SIGKILL);
  ASSERT_TRUE(w->WaitForOutput(kAbsent)) << w->err();
  a = Start("a2", 1, kActor, ActorScript(), "2");
  ASSERT_TRUE(a->WaitForOutput("life 0.1.1")) << a->err();
  ASSERT_TRUE(w->WaitForOutput(kTaken)) << w->err();
  Go();
  EXPECT_EQ(w->Wait(), 0) << w->err();
  EXPECT_EQ(a->Wait(), 0) << a->err();
  EXPECT_TRUE(NoLeaks());
}

// Two nodes that both have a server with a follower and a worker that is restarted alone. No node serves the
// job's store.
class StoreInEtcdTest : public AbsentNodesTest {
 protected:
  void SetUp() override {
    if (!testing::EtcdServer::Installed()) GTEST_SKIP() << "etcd-server is not installed";
    etcd_ = testing::EtcdServer::StartCluster(1);
    ASSERT_EQ(etcd_.size(), 1u);
    endpoint_ = etcd_[0]->address();
    backend_ = "etcd";
  }
  static Words Both(int workers = 1, int servers = 1) {
    Words flags = {"--workers", absl::StrCat(workers), "--ps", absl::StrCat(servers), "--job-store", "etcd"};
    if (workers > 0) flags.insert(flags.end(), {"--restart", "worker=alone:0"});
    if (servers > 0) flags.insert(flags.end(), {"--ps-followers", "1"});
    return flags;
  }
  static void AwaitCopies(TandemProcess& node) {
    ASSERT_TRUE(node.WaitForOutput("primary of shard")) << node.err();
    ASSERT_TRUE(node.WaitForOutput("follower of shard")) << node.err();
  }

  std::vector<std::unique_ptr<testing::EtcdServer>> etcd_;
};

TEST_F(StoreInEtcdTest, TheFirstNodeDiesAndTheOtherGoesOnAndTakesItBack) {
  auto a = Start("a", 0, Both(), WorkerScript(), "2"), b = Start("b", 1, Both(), WorkerScript(), "2");
  ASSERT_TRUE(b->WaitForOutput("up 1")) << b->err();
  for (auto* node : {&a, &b}) AwaitCopies(**node);
  EXPECT_THAT(testing::RunTandem({"status", "--job", dir_.File("b")}).out,
              AllOf(HasSubstr("ps/0"), HasSubstr("ps/3"), HasSubstr("etcd://")));
  a->Signal(SIGKILL);
  EXPECT_EQ(a->Wait(), 137);
  ASSERT_TRUE(b->WaitForOutput(kAbsent)) << b->err();
  ASSERT_TRUE(b->WaitForOutput("takes over shard 0")) << b->err();
  EXPECT_THAT(testing::RunTandem({"status", "--job", dir_.File("b")}).out,
              AllOf(HasSubstr("running, epoch 1, 0 of 0 restarts"), HasSubstr(" absent\n")));
  a = Start("a2", 0, Both(), WorkerScript(), "2");
  ASSERT_TRUE(a->WaitForOutput("in the place of a node that was absent")) << a->err();
  ASSERT_TRUE(a->WaitForOutput("up 0")) << a->err();
  ASSERT_TRUE(a->WaitForOutput("follower of shard 0")) << a->err();
  Go();
  EXPECT_EQ(a->Wait(), 0) << a->err();
  EXPECT_EQ(b->Wait(), 0) << b->err();
  EXPECT_EQ(b->out(), "[worker/1] up 1\n[worker/1] done\n") << "it was not started again";
  EXPECT_THAT(b->err(), Not(HasSubstr("starting again")));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(StoreInEtcdTest, TheJobWaitsByNameForTheWorkersOfANodeThatIsAbsent) {
  auto a = Start("a", 0, Both(), WorkerScript(), "2"), b = Start("b", 1, Both(), WorkerScript(), "2");
  ASSERT_TRUE(b->WaitForOutput("up 1")) << b->err();
  for (auto* node : {&a, &b}) AwaitCopies(**node);
  a->Signal(SIGKILL);
  ASSERT_TRUE(b->WaitForOutput("the job does not end before its processes have finished")) << b->err();
  Go();
  ASSERT_TRUE(b->WaitForOutput("have finished; the job waits for those of node 127.0.78.2-")) << b->err();
  a = Start("a2", 0, Both(), WorkerScript(), "2");
  EXPECT_EQ(a->Wait(), 0) << a->err();
  EXPECT_EQ(b->Wait(), 0) << b->err();
  EXPECT_TRUE(NoLeaks());
}

TEST_F(StoreInEtcdTest, WithoutTheFirstNodeAFailureEndsTheJobWithItsExitCode) {
  const std::string fails =
      absl::StrCat("echo up $RANK; until [ -e ", dir_.File("go"), " ]; do sleep 0.05; done; exit 9");
  auto a = Start("a", 0, Both(), fails, "3"), b = Start("b", 1, Both(), fails, "3");
  auto c = Start("c", 2, Both(1, 0), absl::StrCat("echo up; exec ", kForever), "3");
  for (auto* node : {&b, &c}) ASSERT_TRUE((*node)->WaitForOutput("up")) << (*node)->err();
  for (auto* node : {&a, &b}) AwaitCopies(**node);
  a->Signal(SIGKILL);
  for (auto* node : {&b, &c}) ASSERT_TRUE((*node)->WaitForOutput(kAbsent)) << (*node)->err();
  Go();
  EXPECT_EQ(b->Wait(), 9) << b->err();
  EXPECT_EQ(c->Wait(), 9) << c->err();
  EXPECT_THAT(c->err(), ContainsRegex("the job failed: worker/1 \\(pid [0-9]+\\) exited with code 9"));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(StoreInEtcdTest, AShardWhoseNodesHaveAllDiedFailsTheJobByName) {
  auto a = Start("a", 0, Both(0), "", "3"), b = Start("b", 1, Both(0), "", "3");
  auto w = Start("w", 2, Both(1, 0), WorkerScript(), "3");
  ASSERT_TRUE(w->WaitForOutput("up 0")) << w->err();
  for (auto* node : {&a, &b}) AwaitCopies(**node);
  a->Signal(SIGKILL);
  b->Signal(SIGKILL);
  EXPECT_EQ(w->Wait(), 1) << w->err();
  EXPECT_THAT(w->err(), ContainsRegex("the job failed: shard [01] of 2 has no copy left: absent are node "
                                      "127.0.78.2-.*, node 127.0.78.3-.*; stopping the job"));
  EXPECT_TRUE(NoLeaks());
}

TEST_F(StoreInEtcdTest, ALauncherThatLeavesDoesNotEndTheJobOfTheOthers) {
  // Nodes that may come and go.
  auto a = Start("a", 0, Both(), WorkerScript(), "1:2"), b = Start("b", 1, Both(), WorkerScript(), "1:2");
  ASSERT_TRUE(b->WaitForOutput("up 1")) << b->err();
  for (auto* node : {&a, &b}) AwaitCopies(**node);
  a->Signal(SIGTERM);
  EXPECT_EQ(a->Wait(), 128 + SIGTERM) << a->err();
  ASSERT_TRUE(b->WaitForOutput("has left")) << b->err();
  a = Start("a2", 0, Both(), WorkerScript(), "1:2");
  ASSERT_TRUE(a->WaitForOutput("up 0")) << a->err();
  Go();
  EXPECT_EQ(a->Wait(), 0) << a->err();
  EXPECT_EQ(b->Wait(), 0) << b->err();
  EXPECT_EQ(b->out(), "[worker/1] up 1\n[worker/1] done\n");
  EXPECT_TRUE(NoLeaks());
}

}  // namespace
}  // namespace tandem::launcher
