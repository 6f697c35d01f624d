// SPDX-License-Identifier: Apache-2.0
// A job of several nodes, which are several launchers on this machine, trains on while nodes that have only
// parameter servers with followers die and come back.

#include <signal.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/job_dir.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::integration {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::TandemProcess;

// Enough for the test on any machine: the job is stopped when it is over.
constexpr int kEpochs = 100000;

class NodeDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = std::make_unique<TandemProcess>(Args{"store", "--listen", "127.0.0.1:0"}, job_.Mark());
    ASSERT_TRUE(store_->WaitForOutput("\n"));
    endpoint_ = testing::Lines(store_->out()).at(0);
  }

  // Starts the launcher of node `rank`: node 0 has two workers, the others a server and a follower each.
  std::unique_ptr<TandemProcess> Start(int rank, const std::string& name) const {
    Args args = {"run",
                 "--nnodes",
                 "3",
                 "--node-rank",
                 absl::StrCat(rank),
                 "--local-addr",
                 absl::StrCat("127.0.79.", rank + 2),
                 "--rdzv-backend",
                 "c10d",
                 "--rdzv-endpoint",
                 endpoint_,
                 "--rdzv-id",
                 "job",
                 "--rdzv-conf",
                 "is_host=false,lease=3,join_timeout=60",
                 "--log-dir",
                 name,
                 "--workers",
                 rank == 0 ? "2" : "0",
                 "--ps",
                 rank == 0 ? "0" : "1"};
    if (rank != 0) args.insert(args.end(), {"--ps-followers", "1"});
    args.insert(args.end(), {"--", "tandem", "train", "job.yaml"});
    const Args more = TrainFlags(kEpochs);
    args.insert(args.end(), more.begin(), more.end());
    return std::make_unique<TandemProcess>(args, job_.Mark(), job_.File("."));
  }
  static Args TrainFlags(int epochs) {
    return {"--no-baselines", "--overwrite",
            "--set",          "ps.durability=follower",
            "--set",          absl::StrCat("train.epochs=", epochs),
            "--set",          "checkpoint.keep=100000"};
  }
  // Waits until the workers have ended another epoch than those of which there is output. Returns its number.
  static int NextEpoch(TandemProcess& node) {
    int epoch = 0;
    for (const std::string& line : testing::Lines(node.out())) {
      const size_t at = line.find("] epoch ");
      if (at != std::string::npos) epoch = std::atoi(line.c_str() + at + 8);
    }
    return node.WaitForOutput(absl::StrCat("] epoch ", epoch + 1, "/")) ? epoch + 1 : 0;
  }

  const JobDir job_{2000};
  std::unique_ptr<TandemProcess> store_;
  std::string endpoint_;
};

TEST_F(NodeDeathTest, TheBitsAreThoseOfAnUndisturbedJob) {
  auto workers = Start(0, "workers"), a = Start(1, "a"), b = Start(2, "b");
  ASSERT_TRUE(workers->WaitForOutput("epoch 1/")) << workers->out() << workers->err();
  for (auto* node : {&a, &b}) ASSERT_TRUE((*node)->WaitForOutput("follower of shard")) << (*node)->err();
  const pid_t worker = job_.ProcessWith("RANK=0");
  ASSERT_NE(worker, 0);

  // Node 1 dies with a primary and a follower, and comes back.
  a->Signal(SIGKILL);
  EXPECT_EQ(a->Wait(), 137);
  ASSERT_TRUE(workers->WaitForOutput("It had 1 parameter server, 1 follower")) << workers->err();
  EXPECT_NE(NextEpoch(*workers), 0) << workers->out() << workers->err();
  a = Start(1, "a2");
  for (const char* copy : {"follower of shard 0", "follower of shard 1"}) {
    ASSERT_TRUE(a->WaitForOutput(copy)) << a->err();
  }
  // Node 2 dies, which leaves the copies on the node that has come back.
  b->Signal(SIGKILL);
  EXPECT_EQ(b->Wait(), 137);
  for (const char* copy : {"primary of shard 0", "primary of shard 1"}) {
    ASSERT_TRUE(a->WaitForOutput(copy)) << a->err();
  }
  NextEpoch(*workers);
  const int epoch = NextEpoch(*workers);
  EXPECT_NE(epoch, 0) << workers->out() << workers->err();
  EXPECT_EQ(job_.ProcessWith("RANK=0"), worker);
  workers->Signal(SIGTERM);
  EXPECT_EQ(workers->Wait(), 75) << workers->err();
  EXPECT_EQ(a->Wait(), 75) << a->err();
  EXPECT_THAT(workers->err(), Not(HasSubstr("starting again")));

  // The checkpoint of the last epoch is that of a job which nothing has disturbed.
  Args undisturbed = TrainFlags(epoch);
  undisturbed.insert(undisturbed.end(), {"--set", "checkpoint.dir=undisturbed"});
  Args args = job_.LaunchArgs(2, 2, undisturbed);
  args.insert(args.begin() + 1, {"--ps-followers", "1"});
  const testing::Finished finished = job_.Run(args);
  ASSERT_EQ(finished.exit_code, 0) << finished.out << finished.err;
  const std::string last = job_.Checkpoints("undisturbed").back();
  const std::string name = last.substr(last.rfind('/') + 1);
  EXPECT_EQ(job_.Digest(absl::StrCat("ckpt/", name)), job_.Digest(absl::StrCat("undisturbed/", name)));
}

}  // namespace
}  // namespace tandem::integration
