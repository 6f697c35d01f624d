// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/epoch_gate.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "rpc/connect.h"
#include "rpc/server.h"
#include "rpc/transport/loopback.h"
#include "tests/rpc/echo_service.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
constexpr auto kNotYet = absl::StatusCode::kUnavailable;

Caller Worker(int64_t epoch, const std::string& run_id = "job7") {
  return {.run_id = run_id, .epoch = epoch, .member = "worker/3"};
}
Caller Server(int64_t epoch) { return {.run_id = "job7", .epoch = epoch, .member = "ps/0"}; }

TEST(CallerTest, WhatIsSaidArrives) {
  const Caller said = Worker(5);
  TANDEM_EXPECT_OK(CheckCaller(said));
  const Caller heard = Caller::FromBytes(said.ToBytes());
  EXPECT_EQ(heard.run_id, "job7");
  EXPECT_EQ(heard.epoch, 5);
  EXPECT_EQ(heard.member, "worker/3");
  EXPECT_EQ(Caller::FromBytes(Caller{.token = "secret"}.ToBytes()).token, "secret");
  EXPECT_EQ(Caller().ToBytes(), "");
  EXPECT_EQ(Caller::FromBytes("").epoch, 0);
}

TEST(CallerTest, WhatIsNotUnderstoodIsOfNoEpoch) {
  EXPECT_LT(Caller::FromBytes("\xff\xff\xff").epoch, 0);
  EXPECT_LT(Caller::FromBytes(std::string(kMaxCallerBytes + 1, 'x')).epoch, 0);
  EpochGate gate(Server(5));
  EXPECT_THAT(gate.Admit(Caller::FromBytes("\xff")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ps/0")));
}

TEST(CallerTest, TheLongestNamesTravel) {
  Caller longest{.run_id = std::string(256, 'r'),
                 .epoch = int64_t{1} << 62,
                 .member = std::string(256, 'm'),
                 .token = std::string(kMaxTokenBytes, 't'),
                 .key_id = std::string(kMaxKeyIdBytes, 'k'),
                 .life = int64_t{1} << 62,
                 .shards = uint32_t{1} << 31};
  TANDEM_EXPECT_OK(CheckCaller(longest));
  EXPECT_LE(longest.ToBytes().size(), kMaxCallerBytes);
  longest.member += "m";
  EXPECT_THAT(CheckCaller(longest), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("257")));
  EXPECT_THAT(ConnectGrpc("127.0.0.1:1", {.caller = longest}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CheckCaller({.epoch = -1}), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(EpochGateTest, AServerOfARoundServesItsOwnEpoch) {
  EpochGate gate(Server(5));
  EXPECT_THAT(gate.Admit(Worker(5)), IsOk());
  EXPECT_THAT(gate.Admit(Caller{}), IsOk()) << "a tool that looks at the job";
  EXPECT_THAT(gate.Admit(Worker(5, "")), IsOk());
  EXPECT_THAT(gate.Admit(Worker(4)),
              StatusIs(kRefused, HasSubstr("worker/3 belongs to epoch 4; the job is at epoch 5, says ps/0")));
  EXPECT_THAT(gate.Admit(Worker(6)),
              StatusIs(kNotYet, AllOf(HasSubstr("worker/3 belongs to epoch 6"),
                                      HasSubstr("ps/0 at this address is still at epoch 5"))));
  EXPECT_EQ(gate.epoch(), 5);
  EXPECT_THAT(
      gate.Admit(Worker(5, "job8")),
      StatusIs(kRefused, AllOf(HasSubstr("worker/3 belongs to the job 'job8'"), HasSubstr("'job7'"))));
  gate.Enter(6);
  gate.Enter(2);  // an old epoch
  EXPECT_THAT(gate.Admit(Worker(5)), StatusIs(kRefused));
  EXPECT_THAT(gate.Admit(Worker(6)), IsOk());
}

TEST(EpochGateTest, AServerThatOutlivesRoundsFollowsItsCallers) {
  EpochGate gate(Server(0), EpochGate::Kind::kOutlivesRounds);
  EXPECT_THAT(gate.Admit(Worker(4)), IsOk());
  EXPECT_THAT(gate.Admit(Worker(6)), IsOk());
  EXPECT_EQ(gate.epoch(), 6);
  EXPECT_THAT(gate.Admit(Worker(4)), StatusIs(kRefused, HasSubstr("the job is at epoch 6")));
  EXPECT_THAT(gate.Admit(Worker(9, "job8")), StatusIs(kRefused)) << "another job changes nothing";
  EXPECT_EQ(gate.epoch(), 6);
}

TEST(EpochGateTest, WithoutAnEpochYetEveryoneIsServed) {
  EpochGate gate(Server(0));
  EXPECT_THAT(gate.Admit(Worker(4)), IsOk());
  EXPECT_THAT(gate.Admit(Worker(6)), IsOk());
  gate.Enter(6);
  EXPECT_THAT(gate.Admit(Worker(4)), StatusIs(kRefused));
}

constexpr char kToken[] = "0123456789abcdef";
constexpr char kOther[] = "0123456789abcdeF";

TEST(EpochGateTest, OnlyTheTokenOfTheServerShowsAMember) {
  EpochGate gate(Caller{.run_id = "job7", .epoch = 5, .member = "ps/0", .token = kToken, .key_id = "e1"});
  EXPECT_THAT(gate.Authorize({.token = kToken}, "Echo/Call", Right::kTrain), IsOk());
  for (const std::string& wrong :
       {std::string(), std::string(kOther), std::string(kToken) + "0", std::string(kToken).substr(1)}) {
    // An epoch and a name prove nothing.
    EXPECT_THAT(gate.Authorize({.epoch = 5, .member = "worker/3", .token = wrong, .key_id = "e2\n"},
                               "Echo/Call", Right::kTrain),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         AllOf(HasSubstr("Echo/Call"), HasSubstr("right to train"), HasSubstr("worker/3"),
                               HasSubstr(wrong.empty() ? "no key" : "key e2\\n to"),
                               HasSubstr("ps/0, which has key e1"), HasSubstr("tandem key show"),
                               ::testing::Not(HasSubstr(kToken)), ::testing::Not(HasSubstr(kOther)))));
  }
  // A server without a key serves nobody, not even callers that have none either.
  EXPECT_THAT(EpochGate(Server(5)).Authorize({}, "Echo/Call", Right::kTrain),
              StatusIs(absl::StatusCode::kPermissionDenied));
}

// A server behind a gate, reached over each transport.
class GatedServerTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const auto echo = testing::EchoService([this](std::shared_ptr<ServerCall> call) {
      ++served_;
      call->Finish(
          Bytes(absl::StrCat(call->caller().run_id, " ", call->caller().epoch, " ", call->caller().member)));
    });
    Start(echo);
  }
  void Start(const Service& echo) {
    if (GetParam() == "loopback") {
      services_ = std::make_shared<const std::vector<Service>>(std::vector<Service>{Gated(echo, gate_)});
      return;
    }
    server_ = Server::Start({.listen = "127.0.0.1:0", .gate = gate_}, {echo}).value();
  }
  std::unique_ptr<Channel> Connect(const Caller& caller) const {
    if (GetParam() == "loopback") return ConnectLoopback(services_, nullptr, {}, caller);
    const std::string target = absl::StrCat("127.0.0.1:", server_->port());
    if (GetParam() == "shm") {
      return rpc::Connect(target, {.channel = {.caller = caller}, .transport = "shm"}).value();
    }
    return ConnectGrpc(target, {.stream = GetParam() == "stream", .caller = caller}).value();
  }
  absl::StatusOr<std::string> Call(Channel& channel, bool idempotent = false) const {
    TANDEM_ASSIGN_OR_RETURN(const Bytes response,
                            channel.Call(testing::kEcho, Bytes("?"),
                                         {.timeout = testing::kTestTimeout, .idempotent = idempotent}));
    return response.Flatten();
  }

  std::atomic<int> served_{0};
  std::shared_ptr<EpochGate> gate_ = std::make_shared<EpochGate>(rpc::Caller{"job7", 5, "ps/0"});
  std::shared_ptr<const std::vector<Service>> services_;
  std::unique_ptr<rpc::Server> server_;
};

TEST_P(GatedServerTest, AMethodForMembersNeedsTheToken) {
  gate_ =
      std::make_shared<EpochGate>(Caller{.run_id = "job7", .epoch = 5, .member = "ps/0", .token = kToken});
  const Service echo = testing::EchoService(
      [this](std::shared_ptr<ServerCall> call) {
        ++served_;
        call->Finish(Bytes("served"));
      },
      Right::kTrain);
  Start(echo);
  Caller caller = Worker(5);
  EXPECT_THAT(Call(*Connect(caller)), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("worker/3")));
  caller.token = kOther;
  EXPECT_THAT(Call(*Connect(caller)), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(Call(*Connect({})), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_EQ(served_, 0);
  caller.token = kToken;
  EXPECT_THAT(Call(*Connect(caller)), IsOk());
  caller.epoch = 4;
  EXPECT_THAT(Call(*Connect(caller)), StatusIs(kRefused));
  EXPECT_EQ(served_, 1);
}

TEST_P(GatedServerTest, TheHandlerLearnsWhoCalls) {
  TANDEM_ASSERT_OK_AND_ASSIGN(std::string heard, Call(*Connect(Worker(5))));
  EXPECT_EQ(heard, "job7 5 worker/3");
  TANDEM_ASSERT_OK_AND_ASSIGN(heard, Call(*Connect({})));
  EXPECT_EQ(heard, " 0 ");
}

TEST_P(GatedServerTest, AProcessOfAnOldEpochIsRefusedByNameAndTheHandlerDoesNotSeeIt) {
  const auto worker = Connect(Worker(5));
  TANDEM_ASSERT_OK(Call(*worker).status());
  gate_->Enter(6);
  EXPECT_THAT(Call(*worker).status(),
              StatusIs(kRefused, HasSubstr("worker/3 belongs to epoch 5; the job is at epoch 6")));
  EXPECT_EQ(served_, 1);
  TANDEM_EXPECT_OK(Call(*Connect(Worker(6))).status());
}

TEST_P(GatedServerTest, ACallFromANewerEpochSucceedsOnceTheServerHasHeardOfIt) {
  const auto early = Connect(Worker(6));
  EXPECT_THAT(Call(*early).status(), StatusIs(kNotYet, HasSubstr("still at epoch 5")));
  absl::Notification done;
  absl::StatusOr<Bytes> response;
  early->CallAsync(testing::kEcho, Bytes("?"), {.timeout = testing::kTestTimeout, .idempotent = true},
                   [&](absl::StatusOr<Bytes> result) {
                     response = std::move(result);
                     done.Notify();
                   });
  gate_->Enter(6);
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(testing::kTestTimeout));
  TANDEM_ASSERT_OK(response);
  EXPECT_EQ(served_, 1);
}

INSTANTIATE_TEST_SUITE_P(Transports, GatedServerTest, ::testing::Values("stream", "unary", "shm", "loopback"),
                         [](const auto& transport) { return transport.param; });

// It would lock all members out.
TEST(EpochGateTest, OnlyAMemberMovesAServerToANewerEpoch) {
  const JobKey key = JobKey::Make();
  EpochGate gate(key, {.run_id = "job7", .epoch = 5, .member = "ps/0"}, EpochGate::Kind::kOutlivesRounds);
  Caller stranger = JobKey::Make().Identify({.run_id = "job7", .epoch = 1000, .member = "worker/3"});
  EXPECT_THAT(gate.Admit(stranger), IsOk());
  const Grant grant = *Grant::Make(key, {.role = "operator", .expires = absl::Now() + absl::Hours(1)});
  EXPECT_THAT(gate.Admit(grant.Identify({.run_id = "job7", .epoch = 1000})), IsOk());
  EXPECT_EQ(gate.epoch(), 5);
  EXPECT_THAT(gate.Admit(key.Identify({.run_id = "job7", .epoch = 6, .member = "worker/3"})), IsOk());
  EXPECT_EQ(gate.epoch(), 6);
}

}  // namespace
}  // namespace tandem::rpc
