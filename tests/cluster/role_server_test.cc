// SPDX-License-Identifier: Apache-2.0
#include "cluster/role_server.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cluster/job_token.h"
#include "cluster/store/remote_store.h"
#include "cluster/store/store_server.h"
#include "rpc/connect.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A store, and a server of the job that has it.
struct Job {
  Job() {
    env.role = "replay";
    env.worker = false;
    env.role_rank = 1;
    env.role_world_size = 2;
  }
  std::shared_ptr<rpc::Channel> Connect() const {
    auto channel = rpc::ConnectGrpc(absl::StrCat("127.0.0.1:", server->port()), {.caller = env.caller()});
    TANDEM_CHECK_MSG(channel.ok(), channel.status().ToString());
    return *std::move(channel);
  }
  std::unique_ptr<RoleServer> Serve(const ListenOptions& options = {}) const {
    auto serving = RoleServer::Start({}, env, Connect(), options);
    TANDEM_CHECK_MSG(serving.ok(), serving.status().ToString());
    return *std::move(serving);
  }
  std::string Registered() const {
    return server->store()->Get(RoleAddressKey("replay", 1), absl::Seconds(60)).value();
  }

  std::unique_ptr<StoreServer> server = *StoreServer::Start("127.0.0.1:0");
  Environment env;
};

TEST(RoleServerTest, IsRegisteredUnderWhatItAdvertises) {
  const Job job;
  const auto serving = job.Serve({.listen = "127.0.0.1:0", .advertise = "replay1"});
  EXPECT_EQ(serving->address(), job.Registered());
  EXPECT_THAT(job.Registered(), ::testing::StartsWith("replay1:"));
  EXPECT_EQ(CountRoleServers(job.server->store(), "replay", absl::Seconds(60)).value(), 2);
}

TEST(RoleServerTest, RegistersAgainWhenTheStoreHasForgottenIt) {
  const Job job;
  const auto serving = job.Serve();
  Store* const store = job.server->store();
  TANDEM_ASSERT_OK(store->Delete(RoleAddressKey("replay", 1)));
  TANDEM_ASSERT_OK(store->Delete(RoleCountKey("replay")));
  EXPECT_EQ(job.Registered(), serving->address());
  EXPECT_EQ(CountRoleServers(store, "replay", absl::Seconds(60)).value(), 2);
}

// A learner that hosts the store and is started again brings a new store, and with it another token.
TEST(RoleServerTest, MembersThatJoinAtANewStoreAreLetIn) {
  Job job;
  job.env.token = "the token of before";
  rpc::Service service{.name = "test.Service"};
  service.methods.push_back({"Change", rpc::Right::kTrain,
                             [](std::shared_ptr<rpc::ServerCall> call) { call->Finish(Bytes("done")); }});
  const auto serving = *RoleServer::Start({service}, job.env, job.Connect(), {});
  const auto call = [&](const std::string& token) {
    const auto channel = *rpc::ConnectGrpc(serving->address(), {.caller = {.token = token}});
    return channel->Call("/test.Service/Change", Bytes(), {.timeout = absl::Seconds(60)}).status();
  };
  EXPECT_THAT(call("the token of before"), tandem::testing::IsOk());
  EXPECT_THAT(call("the token of later"), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(call(""), StatusIs(absl::StatusCode::kPermissionDenied));
  // As the new store is, in which the learner has put its token.
  Store* const store = job.server->store();
  TANDEM_ASSERT_OK(store->Set(kJobTokenKey, "the token of later"));
  TANDEM_ASSERT_OK(store->Delete(RoleAddressKey("replay", 1)));
  EXPECT_EQ(job.Registered(), serving->address());
  EXPECT_THAT(call("the token of later"), tandem::testing::IsOk());
  EXPECT_THAT(call("the token of before"), tandem::testing::IsOk());
  EXPECT_THAT(call("the token of nobody"), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST(RoleServerTest, ListensAgainWhereItsEarlierLifeDid) {
  const Job job;
  const std::string earlier = job.Serve({.listen = "127.0.78.11:0"})->address();
  EXPECT_EQ(job.Serve()->address(), earlier);
  EXPECT_EQ(job.Serve({.listen = "127.0.78.11:0"})->address(), earlier);
}

TEST(ChooseAddressTest, AServerListensWhereItsEarlierLifeDid) {
  const std::string store = "127.0.0.1:29500";
  EXPECT_EQ(ChooseAddress({}, "", store)->listen, "127.0.0.1:0");
  EXPECT_EQ(ChooseAddress({}, "10.0.0.7:4711", store)->listen, "10.0.0.7:4711");
  const absl::StatusOr<ListenOptions> fixed =
      ChooseAddress({.listen = "0.0.0.0:7500", .advertise = "replay0:7500"}, "replay0:7500", store);
  TANDEM_ASSERT_OK(fixed);
  EXPECT_EQ(fixed->listen, "0.0.0.0:7500");
  EXPECT_EQ(fixed->advertise, "replay0:7500");
}

TEST(ChooseAddressTest, APickedPortIsPickedOnce) {
  const std::string store = "127.0.0.1:29500";
  const ListenOptions any = {.listen = "0.0.0.0:0", .advertise = "replay0"};
  EXPECT_EQ(ChooseAddress(any, "", store)->listen, "0.0.0.0:0");
  const absl::StatusOr<ListenOptions> again = ChooseAddress(any, "replay0:4711", store);
  TANDEM_ASSERT_OK(again);
  EXPECT_EQ(again->listen, "0.0.0.0:4711");
  EXPECT_EQ(again->advertise, "replay0");
  EXPECT_EQ(ChooseAddress({.listen = "[::]:0"}, "replay0:4711", store)->listen, "[::]:4711");
}

TEST(ChooseAddressTest, FlagsThatContradictEachOtherAreRefused) {
  const auto error = [](const ListenOptions& options) {
    return ChooseAddress(options, "", "127.0.0.1:29500").status();
  };
  EXPECT_THAT(error({.listen = "0.0.0.0:0", .advertise = "replay0:7500"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--advertise replay0:7500"), HasSubstr("--listen 0.0.0.0:0"))));
  EXPECT_THAT(error({.advertise = "replay0:7500"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--advertise needs --listen")));
  for (const std::string listen : {"0.0.0.0:7500", "unix:/tmp/replay0"}) {
    for (const std::string advertise : {"replay0:x", "replay0:0"}) {
      EXPECT_THAT(error({.listen = listen, .advertise = advertise}),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--advertise")));
    }
  }
  EXPECT_THAT(error({.listen = "unix:/tmp/replay0", .advertise = "replay0"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--advertise")));
  EXPECT_THAT(error({.listen = "7500"}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--listen")));
}

}  // namespace
}  // namespace tandem::cluster
