// SPDX-License-Identifier: Apache-2.0
// tandem ps, in a job whose store the test serves.

#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cluster/store/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/client/client.h"
#include "rpc/channel.h"
#include "rpc/connect.h"
#include "rpc/server.h"
#include "rpc/service.h"
#include "tandem/v1/parameter_server.pb.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_key.h"

namespace tandem::cli {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using testing::kTestTimeout;
using testing::RunTandem;
using ::testing::StartsWith;
using testing::StatusIs;
using testing::TandemProcess;

class PsTest : public ::testing::Test {
 protected:
  void SetUp() override { TANDEM_ASSERT_OK_AND_ASSIGN(store_, cluster::StoreServer::Start("127.0.0.1:0")); }
  std::map<std::string, std::string> Variables() const {
    return {{"TANDEM_STORE", absl::StrCat("127.0.0.1:", store_->port())}};
  }
  static std::vector<std::string> Args(std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"ps", "--index", "1", "--num-servers", "2"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  std::unique_ptr<cluster::StoreServer> store_;
};

TEST_F(PsTest, RegistersServesAndEndsWithTheJob) {
  TandemProcess ps(Args({"--lease", "8"}), Variables());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string address, store_->store()->Get("ps/1", kTestTimeout));
  EXPECT_THAT(address, StartsWith("127.0.0.1:"));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, rpc::ConnectGrpc(address));
  tandem::v1::ServerInfo info;
  TANDEM_ASSERT_OK(rpc::CallProto(*channel, "/tandem.v1.ParameterServer/GetServerInfo",
                                  tandem::v1::GetServerInfoRequest(), &info,
                                  {.timeout = kTestTimeout, .idempotent = true}));
  EXPECT_EQ(info.index(), 1u);
  EXPECT_EQ(info.num_servers(), 2u);
  EXPECT_THAT(store_->membership()->Members(), ::testing::Contains("ps/1"));

  TANDEM_EXPECT_OK(store_->membership()->End("worker/0", /*failed=*/false, "trained"));
  EXPECT_EQ(ps.Wait(), 0) << ps.err();
  EXPECT_THAT(ps.err(), HasSubstr("done: worker/0: trained"));
}

// 75 asks the launcher to start the process again as a follower.
TEST(PsExitCodeTest, ACancelledCallIsAnErrorAndNoHandOver) {
  const auto refuse = [](const std::shared_ptr<rpc::ServerCall>& call) {
    call->Finish(absl::CancelledError("the proxy gives up"));
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const auto store,
      rpc::Server::Start({.listen = "127.0.0.1:0", .transport = "grpc"},
                         {rpc::Service{"tandem.v1.Store", {{"Join", rpc::Right::kObserve, refuse}}}}));
  const Finished ps = RunTandem({"ps", "--index", "0", "--num-servers", "1"},
                                {{"TANDEM_STORE", absl::StrCat("127.0.0.1:", store->port())}});
  EXPECT_EQ(ps.exit_code, 1) << ps.err;
  EXPECT_THAT(ps.err, HasSubstr("the proxy gives up"));
}

TEST_F(PsTest, MemoryThatWaitsIsBoundedByTheLaunchersEnvironmentOrByAFlag) {
  auto bound_of = [&](std::vector<std::string> flags) -> absl::StatusOr<uint64_t> {
    std::map<std::string, std::string> variables = Variables();
    variables["TANDEM_PS_MAX_PARKED"] = "3MiB";
    TANDEM_RETURN_IF_ERROR(store_->store()->Delete("ps/1").status());
    TandemProcess ps(Args(std::move(flags)), variables);
    TANDEM_ASSIGN_OR_RETURN(const std::string address, store_->store()->Get("ps/1", kTestTimeout));
    TANDEM_ASSIGN_OR_RETURN(auto channel, rpc::ConnectGrpc(address));
    tandem::v1::ServerStatistics response;
    TANDEM_RETURN_IF_ERROR(rpc::CallProto(*channel, "/tandem.v1.ParameterServer/GetServerStatistics",
                                          tandem::v1::GetServerStatisticsRequest(), &response,
                                          {.timeout = kTestTimeout, .idempotent = true}));
    ps.Signal(SIGTERM);
    EXPECT_EQ(ps.Wait(), 0) << ps.err();
    return response.max_parked_bytes();
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t launchers, bound_of({}));
  EXPECT_EQ(launchers, uint64_t{3} << 20);
  TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t own, bound_of({"--max-parked", "5MiB"}));
  EXPECT_EQ(own, uint64_t{5} << 20);
  const Finished little = RunTandem(Args({"--max-unsent", "1KiB"}), Variables());
  EXPECT_EQ(little.exit_code, 2);
  EXPECT_THAT(little.err, HasSubstr("--max-unsent"));
}

TEST_F(PsTest, AsManyThreadsAnswerAsTheLaunchersEnvironmentOrAFlagSays) {
  // Threads that serve shared memory are found by name. There is one for each connection, up to the limit.
  auto threads_of = [&](std::vector<std::string> flags) -> absl::StatusOr<int> {
    std::map<std::string, std::string> variables = Variables();
    variables["TANDEM_PS_THREADS"] = "1";
    TANDEM_RETURN_IF_ERROR(store_->store()->Delete("ps/1").status());
    TandemProcess ps(Args(std::move(flags)), variables);
    TANDEM_ASSIGN_OR_RETURN(const std::string address, store_->store()->Get("ps/1", kTestTimeout));
    std::vector<std::unique_ptr<rpc::Channel>> channels;
    for (int i = 0; i < 4; ++i) {
      TANDEM_ASSIGN_OR_RETURN(auto channel, rpc::Connect(address, {.transport = "shm"}));
      tandem::v1::ServerInfo info;
      TANDEM_RETURN_IF_ERROR(rpc::CallProto(*channel, "/tandem.v1.ParameterServer/GetServerInfo",
                                            tandem::v1::GetServerInfoRequest(), &info,
                                            {.timeout = kTestTimeout, .idempotent = true}));
      channels.push_back(std::move(channel));
    }
    int threads = 0;
    for (const auto& task : std::filesystem::directory_iterator(absl::StrCat("/proc/", ps.pid(), "/task"))) {
      if (testing::ReadFile(task.path() / "comm") == "shm server\n") ++threads;
    }
    channels.clear();
    ps.Signal(SIGTERM);
    EXPECT_EQ(ps.Wait(), 0) << ps.err();
    return threads;
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(const int launchers, threads_of({}));
  EXPECT_EQ(launchers, 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const int own, threads_of({"--threads", "3"}));
  EXPECT_EQ(own, 3);
  const Finished wrong = RunTandem(Args({"--threads", "-1"}), Variables());
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--threads"));
}

TEST_F(PsTest, EndsWithTheReasonWhenTheJobFails) {
  TandemProcess ps(Args({"--lease", "8"}), Variables());
  TANDEM_ASSERT_OK(store_->store()->Get("ps/1", kTestTimeout).status());
  TANDEM_EXPECT_OK(store_->membership()->End("worker/0", /*failed=*/true, "loss is NaN"));
  EXPECT_EQ(ps.Wait(), 1);
  EXPECT_THAT(ps.err(), HasSubstr("the job failed: worker/0: loss is NaN"));
}

TEST_F(PsTest, EndsWhenTheStoreIsGone) {
  TandemProcess ps(Args({"--lease", "1"}), Variables());
  TANDEM_ASSERT_OK(store_->store()->Get("ps/1", kTestTimeout).status());
  const int port = store_->port();
  store_.reset();
  EXPECT_EQ(ps.Wait(), 1);
  EXPECT_THAT(ps.err(), HasSubstr(absl::StrCat("127.0.0.1:", port)));
}

TEST_F(PsTest, SigtermIsAGracefulEnd) {
  TandemProcess ps(Args({"--lease", "30"}), Variables());
  TANDEM_ASSERT_OK(store_->store()->Get("ps/1", kTestTimeout).status());
  ps.Signal(SIGTERM);
  EXPECT_EQ(ps.Wait(), 0) << ps.err();
  EXPECT_THAT(store_->membership()->Members(), ::testing::IsEmpty());  // it has said good-bye
  EXPECT_FALSE(store_->membership()->State().ended);
}

// A worker's connections to one server, in epoch `epoch` of the job.
absl::StatusOr<std::unique_ptr<ps::Client>> ClientOf(const std::string& address, int64_t epoch,
                                                     uint64_t pushes_as,
                                                     absl::Duration timeout = absl::Seconds(5),
                                                     bool with_key = true) {
  std::vector<std::unique_ptr<rpc::Channel>> channels(1);
  rpc::Caller caller = {.run_id = "job7", .epoch = epoch, .member = "worker/0"};
  if (!with_key) caller = rpc::JobKey::Make().Identify(caller);
  TANDEM_ASSIGN_OR_RETURN(channels[0], rpc::Connect(address, {.channel = {.caller = caller}}));
  return ps::Client::Connect(std::move(channels), {.epoch = pushes_as, .timeout = timeout});
}

ps::v1::TableConfig OneRow() {
  ps::v1::TableConfig config;
  config.set_name("w");
  config.set_kind(ps::v1::TableConfig::EMBEDDING);
  config.set_dim(1);
  config.set_num_workers(1);
  config.mutable_optimizer()->set_kind("sgd");
  config.mutable_optimizer()->set_learning_rate(1.0f);
  config.mutable_initializer()->set_kind("zeros");
  config.mutable_update_mode()->set_kind(ps::v1::UpdateMode::ASYNC);
  return config;
}

// Subtracts `by` from the only row. Returns its value before.
absl::StatusOr<float> Step(ps::Client& client, uint64_t step, float by) {
  const std::vector<uint64_t> ids = {7};
  std::vector<float> row(1), gradient = {by};
  TANDEM_RETURN_IF_ERROR(client.Pull(step, false, {{.table = "w", .ids = ids, .rows = row.data()}}));
  TANDEM_RETURN_IF_ERROR(client.Push(step, {{.table = "w", .ids = ids, .gradients = gradient.data()}}));
  return row[0];
}

TEST_F(PsTest, AWorkerOfAnotherRoundIsRefusedByName) {
  auto variables = Variables();
  variables.insert({{"TANDEM_EPOCH", "5"}, {"TANDEM_RUN_ID", "job7"}});
  TandemProcess ps({"ps", "--index", "0", "--num-servers", "1"}, variables);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string address, store_->store()->Get("ps/0", kTestTimeout));
  EXPECT_THAT(ClientOf(address, 4, 1).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("worker/0 belongs to epoch 4; the job is at epoch 5, says ps/0")));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto worker, ClientOf(address, 5, 1));
  TANDEM_ASSERT_OK(worker->CreateTable(OneRow()));
  TANDEM_ASSERT_OK(Step(*worker, 0, 1.0f).status());
  // This server belongs to the round that is over: updates of the new round would be lost with it. It is
  // called several times, because it might learn of the new round.
  EXPECT_THAT(ClientOf(address, 6, 1, absl::Seconds(4)).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("worker/0 belongs to epoch 6; ps/0 at this address is still at epoch 5")));
  // A worker that was restarted alone belongs to the same round. Pushes of its earlier process are still
  // refused.
  TANDEM_ASSERT_OK_AND_ASSIGN(auto restarted, ClientOf(address, 5, 2));
  TANDEM_ASSERT_OK(restarted->CreateTable(OneRow()));
  TANDEM_ASSERT_OK_AND_ASSIGN(const float seen, Step(*restarted, 0, 1.0f));
  EXPECT_EQ(seen, -1.0f);
  EXPECT_THAT(Step(*worker, 1, 1.0f).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("an older process of this worker")));
}

TEST_F(PsTest, AServerThatOutlivesRoundsLosesNoUpdateToAWorkerThatWasLeftBehind) {
  auto variables = Variables();
  variables.insert({{"TANDEM_EPOCH", "1"}, {"TANDEM_RUN_ID", "job7"}, {"TANDEM_AGENT", "127.0.0.1:1"}});
  TandemProcess ps({"ps", "--index", "0", "--num-servers", "1"}, variables);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string address, store_->store()->Get("ps/0", kTestTimeout));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto left_behind, ClientOf(address, 1, 1));
  TANDEM_ASSERT_OK(left_behind->CreateTable(OneRow()));
  TANDEM_ASSERT_OK(Step(*left_behind, 0, 1.0f).status());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto next, ClientOf(address, 2, 2));
  EXPECT_THAT(Step(*left_behind, 1, 100.0f).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("worker/0 belongs to epoch 1; the job is at epoch 2, says ps/0")));
  TANDEM_ASSERT_OK(next->CreateTable(OneRow()));
  TANDEM_ASSERT_OK_AND_ASSIGN(const float seen, Step(*next, 0, 1.0f));
  EXPECT_EQ(seen, -1.0f);
}

TEST_F(PsTest, InALaunchedJobOnlyItsMembersChangeTables) {
  auto variables = Variables();
  variables.insert({{"TANDEM_EPOCH", "5"}, {"TANDEM_RUN_ID", "job7"}});
  TandemProcess ps({"ps", "--index", "0", "--num-servers", "1"}, variables);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string address, store_->store()->Get("ps/0", kTestTimeout));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto worker, ClientOf(address, 5, 1));
  TANDEM_ASSERT_OK(worker->CreateTable(OneRow()));
  // An epoch and a name make no member.
  TANDEM_ASSERT_OK_AND_ASSIGN(auto stranger, ClientOf(address, 5, 1, absl::Seconds(5), /*with_key=*/false));
  EXPECT_THAT(stranger->CreateTable(OneRow()),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("presents key")));
  const std::vector<std::string> set_mode = {"table",   "set-mode", "--servers", address,
                                             "--table", "w",        "--mode",    "bounded:3"};
  const rpc::JobKey other = rpc::JobKey::Make();
  const Finished refused = RunTandem(set_mode, {{"TANDEM_KEY", other.ToText()}});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err,
              HasSubstr(absl::StrCat("another key than this process, which has key ", other.Id())));
  const Finished set = RunTandem(set_mode);
  EXPECT_EQ(set.exit_code, 0) << set.err;
  EXPECT_THAT(set.out, HasSubstr("bounded:3, was async"));
}

TEST_F(PsTest, CheckpointsAndMemoryKeepToTheirLimits) {
  TandemProcess ps({"ps", "--index", "0", "--num-servers", "1", "--checkpoint-root",
                    std::filesystem::current_path(), "--max-memory", "4MiB"},
                   Variables());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string address, store_->store()->Get("ps/0", kTestTimeout));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, ClientOf(address, 0, 1));
  EXPECT_THAT(client->SaveCheckpoint("/etc"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("--checkpoint-root")));
  ps::v1::TableConfig huge = OneRow();
  huge.set_kind(ps::v1::TableConfig::DENSE);
  huge.set_elements(uint64_t{1} << 32);
  EXPECT_THAT(client->CreateTable(huge),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--max-memory")));
}

TEST_F(PsTest, PublishesTheAddressItIsTold) {
  TandemProcess ps(Args({"--advertise", "ps0:7000"}), Variables());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string address, store_->store()->Get("ps/1", kTestTimeout));
  EXPECT_EQ(address, "ps0:7000");
}

TEST_F(PsTest, AHostToAdvertiseGetsTheBoundPort) {
  TandemProcess ps(Args({"--listen", "0.0.0.0:0", "--advertise", "ps0"}), Variables());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string address, store_->store()->Get("ps/1", kTestTimeout));
  EXPECT_THAT(address, ::testing::MatchesRegex("ps0:[0-9]+"));
}

TEST_F(PsTest, MistakesAreOneClearError) {
  Finished finished = RunTandem({"ps", "--index", "2", "--num-servers", "2"}, Variables());
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("TANDEM_PS_INDEX"));
  finished = RunTandem(Args({"--listen", "nonsense"}), Variables());
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("nonsense"));
  auto nobody = Variables();
  nobody["TANDEM_STORE"] = "127.0.0.1:1";
  finished = RunTandem(Args({"--join-timeout", "0.5"}), nobody);
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace tandem::cli
