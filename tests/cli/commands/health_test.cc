// SPDX-License-Identifier: Apache-2.0
// tandem health, against servers of the test.

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/server.h"
#include "rpc/service.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using testing::RunTandem;

class HealthTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto accept = [](const std::shared_ptr<rpc::ServerCall>& call) { call->Finish(Bytes()); };
    TANDEM_ASSERT_OK_AND_ASSIGN(
        server_, rpc::Server::Start({.listen = "127.0.0.1:0"},
                                    {rpc::Service{"test.Known", {{"Method", rpc::Right::kMember, accept}}}}));
    address_ = absl::StrCat("127.0.0.1:", server_->port());
  }

  std::unique_ptr<rpc::Server> server_;
  std::string address_;
};

TEST_F(HealthTest, AServerThatServesEndsTheCommandWithZero) {
  const Finished whole = RunTandem({"health", address_});
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(whole.out, absl::StrCat(address_, " serves\n"));
  const Finished service = RunTandem({"health", address_, "--service", "test.Known"});
  EXPECT_EQ(service.exit_code, 0) << service.err;
  EXPECT_EQ(service.out, absl::StrCat("test.Known at ", address_, " serves\n"));
}

TEST_F(HealthTest, AServerThatIsAboutToEndEndsItWithOne) {
  server_->SetServing("test.Known", false);
  const Finished finished = RunTandem({"health", address_, "--service", "test.Known"});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("NOT_SERVING"));
}

TEST_F(HealthTest, AServiceThatTheServerDoesNotHaveIsNamed) {
  const Finished finished = RunTandem({"health", address_, "--service", "test.Unknown"});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("test.Unknown"));
}

TEST_F(HealthTest, AServerThatIsGoneIsNamedWithinTheTimeout) {
  server_->Shutdown(absl::ZeroDuration());
  const Finished finished = RunTandem({"health", address_, "--timeout", "0.2"});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr(address_));
}

TEST_F(HealthTest, AnAddressThatIsNoneIsAUsageError) {
  const Finished finished = RunTandem({"health", "nonsense"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.err, HasSubstr("nonsense"));
}

}  // namespace
}  // namespace tandem::cli
