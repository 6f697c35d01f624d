// SPDX-License-Identifier: Apache-2.0
// `tandem rl` under `tandem run`: learners, actors and replay servers as processes, some of which are killed.

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/host/port_reservation.h"
#include "nlohmann/json.hpp"
#include "rpc/connect.h"
#include "rpc/security/job_key.h"
#include "tests/testing/processes/file_watch.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "weights/client/remote_weights.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::ProcessesMarked;
using testing::RunTandem;
using testing::TandemProcess;

class RlRolesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(dir_.File("job.yaml"))
        << "name: arms\nenv: bandit\npolicy: {hidden: [8]}\n"
           "algorithm: {kind: impala, lr: 0.01, unroll: 8, batch: 4}\nactors: {envs: 4}\n"
           "stop: {env_steps: 20000}\nevaluation: {episodes: 10}\n";
  }
  // Returns the arguments of a job with `flags`.
  std::vector<std::string> Job(std::vector<std::string> flags, const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {"run", "--log-dir", dir_.File("logs")};
    args.insert(args.end(), flags.begin(), flags.end());
    args.insert(args.end(),
                {"--", TANDEM_BINARY, "rl", dir_.File("job.yaml"), "--report", dir_.File("report.json")});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  // Returns the process of a role, or -1.
  pid_t Find(const std::string& role) {
    for (const pid_t pid : ProcessesMarked(dir_.File("job.yaml"))) {
      const std::string environment = testing::ReadFile(absl::StrCat("/proc/", pid, "/environ"));
      if (absl::StrContains(environment, absl::StrCat("TANDEM_ROLE=", role, std::string(1, '\0'))))
        return pid;
    }
    return -1;
  }
  // Waits for a version that is newer than `than` by some updates, and returns it.
  weights::ModelVersion Progress(weights::Weights* weights, weights::ModelVersion than) {
    const absl::Time deadline = MonotonicNow() + testing::kTestTimeout;
    for (int i = 0; i < 20;) {
      const auto newer = weights->Newer("policy", than, deadline);
      if (MonotonicNow() < deadline && absl::IsUnavailable(newer.status())) continue;  // it starts again
      EXPECT_TRUE(newer.ok() && *newer != nullptr) << newer.status();
      if (!newer.ok() || *newer == nullptr) break;
      than = (*newer)->info.version;
      ++i;
    }
    return than;
  }
  absl::StatusOr<std::unique_ptr<rpc::Channel>> ConnectWithKeyOfJob(const std::string& address) const {
    TANDEM_ASSIGN_OR_RETURN(rpc::JobKey key, rpc::JobKey::FromFile(dir_.File("logs/key")));
    return rpc::Connect(address, {.channel = {.key = std::make_shared<const rpc::JobKey>(std::move(key))}});
  }

  testing::TempDir dir_;
};

TEST_F(RlRolesTest, TwoLearnersTwoReplayServersAndThreeActorsTrainAJob) {
  const Finished trained =
      RunTandem(Job({"--learners", "2", "--replay", "2", "--actors", "3"}), {}, dir_.path());
  ASSERT_EQ(trained.exit_code, 0) << trained.out << trained.err;
  EXPECT_THAT(trained.out,
              AllOf(HasSubstr("[learner/0]   greedy evaluation      1.00"), HasSubstr("lag of unrolls")));
  const nlohmann::json report = nlohmann::json::parse(testing::ReadFile(dir_.File("report.json")));
  EXPECT_GE(report["env_steps"], 20000);
  EXPECT_EQ(RunTandem({"rl", "eval", dir_.File("runs/arms/model.safetensors")}).exit_code, 0);
}

TEST_F(RlRolesTest, ALearnerOfDqnSamplesFromTwoReplayServers) {
  const Finished trained = RunTandem(
      Job({"--learners", "1", "--replay", "2", "--actors", "2"},
          {"--set", "algorithm={kind: dqn, lr: 0.01, batch: 32, learning_starts: 200, target_every: 200}"}),
      {}, dir_.path());
  ASSERT_EQ(trained.exit_code, 0) << trained.out << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("[learner/0]   greedy evaluation      1.00"));
  const nlohmann::json report = nlohmann::json::parse(testing::ReadFile(dir_.File("report.json")));
  EXPECT_GE(report["env_steps"], 20000);
  EXPECT_GT(report["episodes"], 0);
}

TEST_F(RlRolesTest, AReturnThatIsHighEnoughEndsAllLearnersWell) {
  const Finished trained = RunTandem(Job({"--learners", "2", "--replay", "1", "--actors", "2"},
                                         {"--set", "stop={env_steps: 1000000000000, mean_return: 0.8}"}),
                                     {}, dir_.path());
  EXPECT_EQ(trained.exit_code, 0) << trained.out << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("which ended the run (stop.mean_return)"));
}

TEST_F(RlRolesTest, AKilledActorAndAKilledReplayServerComeBack) {
  TandemProcess job(Job({"--learners", "1", "--replay", "1", "--actors", "2", "--restart",
                         "replay=alone:1000", "--restart", "actor=alone:1000"},
                        {"--set", "stop.env_steps=1000000000000"}),
                    {}, dir_.path());
  std::string address;
  ASSERT_TRUE(job.WaitForOutput("serving at "));
  const auto find_address = [&](const std::string& text) {
    const size_t at = text.find("serving at ");
    if (at != std::string::npos) address = text.substr(at + 11, text.find('\n', at) - at - 11);
  };
  find_address(job.out());
  find_address(job.err());
  ASSERT_NE(address, "") << job.out() << job.err();
  auto channel = ConnectWithKeyOfJob(address);
  TANDEM_ASSERT_OK(channel);
  weights::RemoteWeights weights(*std::move(channel));
  weights::ModelVersion version = Progress(&weights, {});
  for (const char* role : {"actor", "replay", "actor"}) {
    const pid_t pid = Find(role);
    ASSERT_GT(pid, 0) << role;
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    const weights::ModelVersion next = Progress(&weights, version);
    EXPECT_GT(next, version) << role << job.err();
    version = next;
  }
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(), 75) << job.out() << job.err();
  EXPECT_EQ(RunTandem({"rl", "eval", dir_.File("runs/arms/model.safetensors")}).exit_code, 0);
}

// As in containers: the learner hosts the store, and something else starts processes again.
TEST_F(RlRolesTest, WithoutALauncherEachKilledProcessCanBeStartedAgain) {
  const auto store_port = launcher::PortReservation::Keep(0), port = launcher::PortReservation::Keep(0);
  TANDEM_ASSERT_OK(store_port);
  TANDEM_ASSERT_OK(port);
  const std::string address = absl::StrCat("127.0.0.1:", (*port)->port());
  const auto start = [&](const std::string& role) {
    std::vector<std::string> args = {"rl", dir_.File("job.yaml"), "--set", "stop.env_steps=1000000000000"};
    std::map<std::string, std::string> variables = {{"TANDEM_ROLE", role},
                                                    {"WORLD_SIZE", "1"},
                                                    {"MASTER_ADDR", "127.0.0.1"},
                                                    {"MASTER_PORT", absl::StrCat((*store_port)->port())}};
    if (role == "learner") {
      args.insert(args.end(), {"--resume", "--set", "checkpoint.every_seconds=1e-6"});
      variables["RANK"] = "0";
    } else {
      variables["ROLE_RANK"] = "0";
      variables["ROLE_WORLD_SIZE"] = "1";
    }
    if (role == "replay") args.insert(args.end(), {"--listen", address});
    return std::make_unique<TandemProcess>(args, variables, dir_.path());
  };
  std::map<std::string, std::unique_ptr<TandemProcess>> processes;
  for (const char* role : {"learner", "replay", "actor"}) processes[role] = start(role);
  ASSERT_TRUE(processes["replay"]->WaitForOutput("serving at " + address)) << processes["replay"]->err();
  auto channel = rpc::Connect(address);
  TANDEM_ASSERT_OK(channel);
  weights::RemoteWeights weights(*std::move(channel));
  weights::ModelVersion version = Progress(&weights, {});
  for (const char* role : {"actor", "replay", "learner"}) {
    processes[role] = nullptr;  // killed
    processes[role] = start(role);
    const weights::ModelVersion next = Progress(&weights, version);
    EXPECT_GT(next, version) << role << processes["learner"]->err() << processes["actor"]->err();
    version = next;
  }
  EXPECT_TRUE(processes["learner"]->WaitForOutput("resumed at step ")) << processes["learner"]->err();
  processes["learner"]->Signal(SIGTERM);
  EXPECT_EQ(processes["learner"]->Wait(), 75) << processes["learner"]->err();
}

TEST_F(RlRolesTest, AnInferenceServerActsForAllActorsAndComesBack) {
  TandemProcess job(Job({"--learners", "1", "--replay", "1", "--actors", "2", "--role", "inference=1"},
                        {"--set", "actors.inference=server", "--set", "stop.env_steps=1000000000000", "--set",
                         "log_every_seconds=0.05", "--tensorboard", dir_.File("scalars")}),
                    {}, dir_.path());
  ASSERT_TRUE(job.WaitForOutput("for 1000000000000 steps"));
  std::filesystem::create_directories(dir_.File("scalars"));
  testing::FileWatch watch({dir_.File("scalars")});
  const auto size = [&] {
    uint64_t bytes = 0;
    for (const auto& file : std::filesystem::directory_iterator(dir_.File("scalars")))
      bytes += file.file_size();
    return bytes;
  };
  // Scalars are written as long as the learner gets unrolls.
  const auto goes_on = [&] {
    const uint64_t before = size();
    return watch.Await([&] { return size() > before + 4000; }, absl::Now() + testing::kTestTimeout,
                       {job.pid()});
  };
  ASSERT_TRUE(goes_on()) << job.err();
  const pid_t inference = Find("inference");
  ASSERT_GT(inference, 0);
  ASSERT_EQ(::kill(inference, SIGKILL), 0);
  EXPECT_TRUE(goes_on()) << job.err();
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(), 75) << job.out() << job.err();
}

TEST_F(RlRolesTest, AKilledLearnerGoesOnFromItsCheckpoint) {
  std::filesystem::create_directories(dir_.File("runs/arms"));
  testing::FileWatch watch({dir_.File("runs/arms")});
  TandemProcess job(
      Job({"--learners", "1", "--replay", "1", "--actors", "1", "--max-restarts", "2"},
          {"--resume", "--set", "checkpoint.every_seconds=0.01", "--set", "stop.env_steps=1000000000000"}),
      {}, dir_.path());
  const std::string checkpoint = dir_.File("runs/arms/checkpoint.safetensors");
  ASSERT_TRUE(watch.Await([&] { return std::filesystem::exists(checkpoint); },
                          absl::Now() + testing::kTestTimeout, {job.pid()}))
      << job.err();
  const pid_t learner = Find("learner");
  ASSERT_GT(learner, 0);
  ASSERT_EQ(::kill(learner, SIGKILL), 0);
  EXPECT_TRUE(job.WaitForOutput("resumed at step ")) << job.out() << job.err();
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(), 75) << job.out() << job.err();
}

TEST_F(RlRolesTest, MistakesAreNamed) {
  const auto error = [&](const std::vector<std::string>& args) {
    const Finished finished = RunTandem(args, {}, dir_.path());
    EXPECT_NE(finished.exit_code, 0) << finished.out;
    return finished.err;
  };
  EXPECT_THAT(error(Job({"--workers", "1"})),
              HasSubstr("tandem rl has the roles learner, actor, replay and inference"));
  EXPECT_THAT(error(Job({"--learners", "1"}, {"--set", "algorithm={kind: ppo}"})),
              HasSubstr("the algorithm 'ppo' acts and learns in one process"));
  EXPECT_THAT(error(Job({"--learners", "1", "--replay", "1", "--actors", "1", "--role", "inference=1"},
                        {"--set", "algorithm={kind: dqn}", "--set", "actors.inference=server"})),
              HasSubstr("has 'count', 'lockstep' or 'inference', but the algorithm 'dqn'"));
  EXPECT_THAT(error(Job({"--learners", "1", "--replay", "1", "--actors", "1"},
                        {"--set", "algorithm={kind: dqn}", "--set", "policy.normalize_observations=true"})),
              HasSubstr("policy.normalize_observations: a dqn job of several processes"));
  EXPECT_THAT(error(Job({"--learners", "1", "--replay", "2", "--actors", "1"})),
              HasSubstr("the job has 2 replay servers and 1 learners"));
  EXPECT_THAT(error(Job({"--learners", "2", "--replay", "2", "--actors", "1"})),
              HasSubstr("the job has 2 replay servers and 1 actors"));
  EXPECT_THAT(
      error(Job({"--learners", "1", "--replay", "2", "--actors", "1"}, {"--set", "algorithm={kind: dqn}"})),
      HasSubstr("the job has 2 replay servers and 1 actors"));
  EXPECT_THAT(error({"rl", dir_.File("job.yaml"), "--set", "actors.inference=server"}),
              HasSubstr("needs processes of role inference"));
  EXPECT_THAT(error(Job({"--learners", "1", "--replay", "1", "--actors", "1"}, {"--listen", "7500"})),
              AllOf(HasSubstr("--listen"), HasSubstr("7500")));
  EXPECT_THAT(error(Job({"--learners", "1"}, {"--advertise", "replay0:7500"})), HasSubstr("--listen"));
  EXPECT_THAT(error(Job({"--learners", "1"}, {"--seeds", "1-2"})),
              HasSubstr("--seeds trains in this process"));
}

}  // namespace
}  // namespace tandem::cli
