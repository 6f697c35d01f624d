// tandem ps, in a job whose store the test serves.

#include <signal.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "collectives/store/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "tandem/v1/parameter_server.pb.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tandem_process.h"

namespace tandem::cli {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::RunTandem;
using ::testing::StartsWith;
using testing::TandemProcess;

class PsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TANDEM_ASSERT_OK_AND_ASSIGN(store_, collectives::StoreServer::Start("127.0.0.1:0"));
  }
  std::map<std::string, std::string> Variables() const {
    return {{"TANDEM_STORE", absl::StrCat("127.0.0.1:", store_->port())}};
  }
  static std::vector<std::string> Args(std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"ps", "--index", "1", "--num-servers", "2"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  std::unique_ptr<collectives::StoreServer> store_;
};

TEST_F(PsTest, RegistersServesAndEndsWithTheJob) {
  TandemProcess ps(Args({"--lease", "1"}), Variables());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string address, store_->store()->Get("ps/1", kPatience));
  EXPECT_THAT(address, StartsWith("127.0.0.1:"));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, rpc::ConnectGrpc(address));
  tandem::v1::ServerInfo info;
  TANDEM_ASSERT_OK(rpc::CallProto(*channel, "/tandem.v1.ParameterServer/GetServerInfo",
                                  tandem::v1::GetServerInfoRequest(), &info,
                                  {.timeout = kPatience, .idempotent = true}));
  EXPECT_EQ(info.index(), 1u);
  EXPECT_EQ(info.num_servers(), 2u);
  EXPECT_THAT(store_->membership()->Members(), ::testing::Contains("ps/1"));

  store_->membership()->End("worker/0", /*failed=*/false, "trained");
  EXPECT_EQ(ps.Wait(), 0) << ps.err();
  EXPECT_THAT(ps.err(), HasSubstr("done: worker/0: trained"));
}

TEST_F(PsTest, EndsWithTheReasonWhenTheJobFails) {
  TandemProcess ps(Args({"--lease", "1"}), Variables());
  TANDEM_ASSERT_OK(store_->store()->Get("ps/1", kPatience).status());
  store_->membership()->End("worker/0", /*failed=*/true, "loss is NaN");
  EXPECT_EQ(ps.Wait(), 1);
  EXPECT_THAT(ps.err(), HasSubstr("the job failed: worker/0: loss is NaN"));
}

TEST_F(PsTest, EndsWhenTheStoreIsGone) {
  TandemProcess ps(Args({"--lease", "1"}), Variables());
  TANDEM_ASSERT_OK(store_->store()->Get("ps/1", kPatience).status());
  const int port = store_->port();
  store_.reset();
  EXPECT_EQ(ps.Wait(), 1);
  EXPECT_THAT(ps.err(), HasSubstr(absl::StrCat("127.0.0.1:", port)));
}

TEST_F(PsTest, SigtermIsAGracefulEnd) {
  TandemProcess ps(Args({"--lease", "30"}), Variables());
  TANDEM_ASSERT_OK(store_->store()->Get("ps/1", kPatience).status());
  ps.Signal(SIGTERM);
  EXPECT_EQ(ps.Wait(), 0) << ps.err();
  EXPECT_THAT(store_->membership()->Members(), ::testing::IsEmpty());  // it has said good-bye
  EXPECT_FALSE(store_->membership()->State().ended);
}

TEST_F(PsTest, PublishesTheAddressItIsTold) {
  TandemProcess ps(Args({"--advertise", "ps0:7000"}), Variables());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string address, store_->store()->Get("ps/1", kPatience));
  EXPECT_EQ(address, "ps0:7000");
}

TEST_F(PsTest, AHostToAdvertiseGetsTheBoundPort) {
  TandemProcess ps(Args({"--listen", "0.0.0.0:0", "--advertise", "ps0"}), Variables());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string address, store_->store()->Get("ps/1", kPatience));
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
