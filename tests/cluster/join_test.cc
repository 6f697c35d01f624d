// SPDX-License-Identifier: Apache-2.0
// Joining a store over the network, and what it refuses.

#include "cluster/join.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cluster/environment.h"
#include "cluster/membership/job_monitor.h"
#include "cluster/membership/member_process.h"
#include "cluster/store/remote_store.h"
#include "cluster/store/store_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/server.h"
#include "tandem/v1/store.pb.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_key.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::tandem::testing::WithTestKey;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kJoinTimeout = absl::Seconds(60);

// A process of another machine, which this one cannot look for.
const MemberProcess kElsewhere{.host = "node-b", .boot_id = "b", .pid_namespace = 1, .pid = 12, .started = 7};

class JoinTest : public ::testing::Test {
 protected:
  void Serve(std::shared_ptr<rpc::EpochGate> gate = nullptr) {
    const std::string listen = server_ == nullptr ? "127.0.0.1:0" : address_;
    server_.reset();
    server_ = StoreServer::Start(listen, &clock_, std::move(gate)).value();
    address_ = absl::StrCat("127.0.0.1:", server_->port());
  }
  void SetUp() override { Serve(); }
  Environment Worker() const {
    Environment env;
    env.rank = 1;
    env.world_size = 2;
    env.store = address_;
    return env;
  }
  std::unique_ptr<rpc::Channel> Connect(rpc::Caller caller = {}) const {
    return rpc::ConnectGrpc(address_, {.caller = std::move(caller)}).value();
  }
  LocalMembership& members() { return *server_->membership(); }

  SimulatedClock clock_;
  std::string address_;
  std::unique_ptr<StoreServer> server_;
};

TEST_F(JoinTest, AStrangersChangesAreRefusedByNameOfMethodAndRight) {
  const rpc::JobKey key = rpc::JobKey::Make();
  Serve(StoreGate(key));
  const std::unique_ptr<rpc::Channel> stranger = Connect({.member = "worker/0"});
  const auto call = [&stranger](const std::string& method, const google::protobuf::MessageLite& request) {
    return stranger
        ->Call("/tandem.v1.Store/" + method, Bytes(request.SerializeAsString()), {.timeout = kJoinTimeout})
        .status();
  };
  v1::StoreSetRequest set;
  set.set_key("ps/0");
  v1::HeartbeatRequest beat;
  beat.set_member("worker/0");
  beat.set_lease_ms(1);
  v1::EndJobRequest end;
  end.set_failed(true);
  for (const auto& [method, refusal] :
       {std::pair("Set", call("Set", set)), std::pair("Heartbeat", call("Heartbeat", beat)),
        std::pair("EndJob", call("EndJob", end))}) {
    EXPECT_THAT(refusal, StatusIs(absl::StatusCode::kPermissionDenied,
                                  AllOf(HasSubstr(absl::StrCat("tandem.v1.Store/", method)),
                                        HasSubstr("right to be a member"), HasSubstr("worker/0 presents key"),
                                        HasSubstr(key.Id()))));
  }
  EXPECT_EQ(server_->store()->NumKeys().value(), 0);
  EXPECT_TRUE(members().Members().empty());
  EXPECT_FALSE(members().State().ended);
  EXPECT_THAT(RemoteStore(Connect()).GetIfPresent("ps/0", kJoinTimeout),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("right to read")));
  // This process has another key.
  const auto both = AllOf(HasSubstr(key.Id()), HasSubstr(WithTestKey().key_id));
  RemoteStore client(ConnectStore(address_).value());
  EXPECT_THAT(client.Set("k", "v"),
              StatusIs(absl::StatusCode::kPermissionDenied, AllOf(HasSubstr("Store/Set"), both)));
  EXPECT_THAT(OpenStore(Worker(), kJoinTimeout),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr(address_), HasSubstr("Store/Join"), both)));
}

TEST_F(JoinTest, AClientGoesOnAtAStoreThatHasStartedAgain) {
  RemoteStore client(ConnectStore(address_).value());
  TANDEM_ASSERT_OK(client.Set("k", "v"));
  Serve();
  TANDEM_EXPECT_OK(client.Set("k", "w"));
}

TEST_F(JoinTest, AMemberKeepsItsLifeAtAStoreThatHasStartedAgain) {
  TANDEM_EXPECT_OK(members().EndLife("worker/1", kElsewhere));
  ASSERT_EQ(members().Join("worker/1", kElsewhere)->life, 1);
  TANDEM_EXPECT_OK(members().EndLife("worker/1", kElsewhere));
  const auto job = OpenStore(Worker(), kJoinTimeout).value();
  EXPECT_EQ(job->env().life, 2);
  Serve();
  // As a member does when a heartbeat tells it.
  EXPECT_EQ(JoinStore(*job->channel(), {.member = "worker/1", .life = 2}).value(), 2);
  const auto another = OpenStore(Worker(), kJoinTimeout).value();  // of the same process
  EXPECT_EQ(another->env().life, 2);
}

TEST_F(JoinTest, ASecondProcessOfAnAliveMembersNameIsToldWhoIsThere) {
  ASSERT_EQ(members().Join("worker/1", kElsewhere)->life, 1);
  TANDEM_ASSERT_OK(members().Heartbeat("worker/1", absl::Seconds(10), false, {}, 1));
  std::thread beats([this] {
    for (int i = 0; i < 20; ++i) {
      absl::SleepFor(absl::Milliseconds(50));
      TANDEM_EXPECT_OK(members().Heartbeat("worker/1", absl::Seconds(10), false, {}, 1));
    }
  });
  EXPECT_THAT(OpenStore(Worker(), kJoinTimeout),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("worker/1 is there already: pid 12 on node-b (life 1)"),
                             HasSubstr("was last heard"), HasSubstr("another rank or index"))));
  beats.join();
  EXPECT_EQ(members().Join("worker/1", kElsewhere)->life, 1);
}

TEST_F(JoinTest, AProcessThatIsSilentForItsLeaseIsReplacedAndLearnsIt) {
  ASSERT_EQ(members().Join("worker/1", kElsewhere)->life, 1);
  TANDEM_ASSERT_OK(members().Heartbeat("worker/1", absl::Seconds(10), false, {.replaceable = true}, 1));
  EXPECT_THAT(OpenStore(Worker(), absl::Seconds(5)), StatusIs(absl::StatusCode::kAlreadyExists));
  clock_.Advance(absl::Seconds(11));
  const auto job = OpenStore(Worker(), kJoinTimeout).value();
  EXPECT_EQ(job->env().life, 2);
  const rpc::Caller replaced = WithTestKey({.member = "worker/1", .life = 1});
  const auto refused =
      StatusIs(absl::StatusCode::kAlreadyExists,
               AllOf(HasSubstr("worker/1 (life 1) was replaced by pid"), HasSubstr("life 2")));
  EXPECT_THAT(RemoteStore(Connect(replaced)).Set("rl/worker/1", "its address"), refused);
  std::shared_ptr<rpc::Channel> channel = Connect(replaced);
  EXPECT_THAT(JobMonitor::Start(channel, {.member = "worker/1"}, nullptr), refused);
  TANDEM_EXPECT_OK(job->store()->Set("rl/worker/1", "its address"));
}

TEST_F(JoinTest, TheMonitorOfAReplacedProcessSaysWhoHasItsPlace) {
  const auto job = OpenStore(Worker(), kJoinTimeout).value();
  absl::Notification ended;
  JobState end;
  const auto monitor =
      JobMonitor::Start(job->channel(),
                        {.member = "worker/1", .lease = absl::Seconds(1), .replaceable = true},
                        [&](const JobState& state) {
                          end = state;
                          ended.Notify();
                        })
          .value();
  ASSERT_EQ(members().Join("worker/1", kElsewhere, 0, /*replaces=*/1)->life, 2);
  ASSERT_TRUE(ended.WaitForNotificationWithTimeout(kJoinTimeout));
  EXPECT_TRUE(end.failed);
  EXPECT_THAT(end.reason, HasSubstr("was replaced by pid 12 on node-b (life 2)"));
}

TEST_F(JoinTest, AProcessOfThisMachineThatHasEndedIsReplacedAtOnce) {
  MemberProcess gone = MemberProcess::Self();
  --gone.started;
  ASSERT_EQ(members().Join("worker/1", gone)->life, 1);
  TANDEM_ASSERT_OK(members().Heartbeat("worker/1", absl::Hours(1), false, {}, 1));
  EXPECT_EQ(OpenStore(Worker(), kJoinTimeout).value()->env().life, 2);
}

TEST_F(JoinTest, AProcessThatHasClosedItsStoreFreesItsName) {
  TANDEM_ASSERT_OK(OpenStore(Worker(), kJoinTimeout).value()->Close(kJoinTimeout));
  EXPECT_EQ(members().Join("worker/1", kElsewhere)->life, 2);
}

TEST(JoinAnotherServerTest, AGrpcServerThatIsNoStoreIsNamed) {
  const auto server = rpc::Server::Start({.listen = "127.0.0.1:0", .transport = "grpc"}, {}).value();
  Environment env;
  env.store = absl::StrCat("127.0.0.1:", server->port());
  EXPECT_THAT(OpenStore(env, kJoinTimeout),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr(absl::StrCat("there is no Tandem store at ", env.store))));
}

}  // namespace
}  // namespace tandem::cluster
