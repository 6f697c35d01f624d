// SPDX-License-Identifier: Apache-2.0
#include "cluster/server.h"

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/read_file.h"
#include "cluster/store/job_token.h"
#include "cluster/store/store_server.h"
#include "rpc/channel.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A store, and a process of role replay of the job that has it.
struct Job {
  Job() {
    env.role = "replay";
    env.worker = false;
    env.role_rank = 1;
    env.role_world_size = 2;
    env.store = absl::StrCat("127.0.0.1:", server->port());
  }
  std::unique_ptr<Member> Join() const {
    auto member = Member::Join(env, {.outlives_job = true});
    TANDEM_CHECK_MSG(member.ok(), member.status().ToString());
    return *std::move(member);
  }
  std::string Registered() const {
    return server->store()->Get(RoleAddressKey("replay", 1), absl::Seconds(60)).value();
  }

  std::unique_ptr<StoreServer> server = *StoreServer::Start("127.0.0.1:0");
  Environment env;
};

std::unique_ptr<Server> Serve(Member* member, const ListenOptions& listen = {}) {
  auto serving = Server::Start(member, {.address = listen}, {});
  TANDEM_CHECK_MSG(serving.ok(), serving.status().ToString());
  return *std::move(serving);
}

TEST(ServerTest, IsRegisteredUnderWhatItAdvertises) {
  const Job job;
  const auto member = job.Join();
  const auto serving = Serve(member.get(), {.listen = "127.0.0.1:0", .advertise = "replay1"});
  EXPECT_EQ(serving->address(), job.Registered());
  EXPECT_THAT(job.Registered(), ::testing::StartsWith("replay1:"));
  EXPECT_EQ(CountRoleServers(job.server->store(), "replay", absl::Seconds(60)).value(), 2);
}

TEST(ServerTest, RegistersAgainWhenTheStoreHasForgottenIt) {
  const Job job;
  const auto member = job.Join();
  const auto serving = Serve(member.get());
  Store* const store = job.server->store();
  TANDEM_ASSERT_OK(store->Delete(RoleAddressKey("replay", 1)));
  TANDEM_ASSERT_OK(store->Delete(RoleCountKey("replay")));
  EXPECT_EQ(job.Registered(), serving->address());
  EXPECT_EQ(CountRoleServers(store, "replay", absl::Seconds(60)).value(), 2);
}

constexpr char kBefore[] = "the-token-of-before", kLater[] = "the-token-of-later";

// A learner that hosts the store and is started again brings a new store, and with it another token.
TEST(ServerTest, MembersThatJoinAtANewStoreAreLetIn) {
  Job job;
  job.env.token = kBefore;
  rpc::Service service{.name = "test.Service"};
  service.methods.push_back({"Change", rpc::Right::kTrain,
                             [](std::shared_ptr<rpc::ServerCall> call) { call->Finish(Bytes("done")); }});
  // The store has given the member this token before.
  ASSERT_EQ(job.server->access()->Join({.token = kBefore}, /*member=*/false, /*secret=*/false).value(),
            kBefore);
  const auto member = job.Join();
  const auto serving = *Server::Start(member.get(), {}, {service});
  const auto call = [&](const std::string& token) {
    const auto channel = *rpc::ConnectGrpc(serving->address(), {.caller = {.token = token}});
    return channel->Call("/test.Service/Change", Bytes(), {.timeout = absl::Seconds(60)}).status();
  };
  EXPECT_THAT(call(kBefore), tandem::testing::IsOk());
  EXPECT_THAT(call(kLater), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(call(""), StatusIs(absl::StatusCode::kPermissionDenied));
  // As the new store is, at which the learner has joined first.
  job.server->access()->SetToken("");
  EXPECT_EQ(job.server->access()->Join({.token = kLater}, true, false).value(), kLater);
  TANDEM_ASSERT_OK(job.server->store()->Delete(RoleAddressKey("replay", 1)));
  EXPECT_EQ(job.Registered(), serving->address());
  EXPECT_THAT(call(kLater), tandem::testing::IsOk());
  EXPECT_THAT(call(kBefore), tandem::testing::IsOk());
  EXPECT_THAT(call("the-token-of-nobody"), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST(ServerTest, ListensAgainWhereItsEarlierLifeDid) {
  const Job job;
  const auto member = job.Join();
  const std::string earlier = Serve(member.get(), {.listen = "127.0.78.11:0"})->address();
  EXPECT_EQ(Serve(member.get())->address(), earlier);
  EXPECT_EQ(Serve(member.get(), {.listen = "127.0.78.11:0"})->address(), earlier);
}

TEST(ServerTest, APortThatIsTakenNamesTheMemberThatServesThere) {
  Job job;
  const auto first = job.Join();
  const auto serving = Serve(first.get(), {.listen = "127.0.0.1:0"});
  job.env.role_rank = 0;
  const auto second = job.Join();
  // The address reaches the store with a heartbeat.
  const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
  absl::Status taken;
  do {
    taken = Server::Start(second.get(), {.address = {.listen = serving->address()}}, {}).status();
  } while (MonotonicNow() < deadline && !absl::StrContains(taken.message(), "replay/1"));
  EXPECT_THAT(taken,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(serving->address()), HasSubstr("replay/1 of this job serves there"),
                             HasSubstr(absl::StrCat("process ", ::getpid())))));
}

TEST(ServerTest, IsServingOnlyWhenItIsReady) {
  const Job job;
  const auto member = job.Join();
  const auto serving = *Server::Start(member.get(), {.ready = false}, {});
  const auto channel = *rpc::ConnectGrpc(serving->address());
  // grpc.health.v1.HealthCheckResponse { status: SERVING = 1, NOT_SERVING = 2 }
  const auto health = [&] {
    return channel->Call("/grpc.health.v1.Health/Check", Bytes(), {.timeout = absl::Seconds(60)}).value();
  };
  EXPECT_EQ(health().Flatten(), "\x08\x02");
  EXPECT_FALSE(job.server->store()->Check({RoleAddressKey("replay", 1)}).value());
  TANDEM_ASSERT_OK(serving->SetReady());
  EXPECT_EQ(health().Flatten(), "\x08\x01");
  EXPECT_EQ(job.Registered(), serving->address());
}

TEST(ServerTest, ItsAddressAndStateAreInTheStatus) {
  const Job job;
  const auto member = job.Join();
  const auto serving = Serve(member.get());
  EXPECT_EQ(member->status()->Get().address, serving->address());
  EXPECT_EQ(member->status()->Get().state, "serving");
}

TEST(ServerTest, TellsItsLauncherByAFileThatItServes) {
  const Job job;
  const auto member = job.Join();
  const tandem::testing::TempDir directory;
  const std::string file = absl::StrCat(directory.path(), "/SERVING");
  const auto serving = *Server::Start(member.get(), {.serving_file = file}, {});
  EXPECT_EQ(ReadFile(file).value(), absl::StrCat(::getpid(), "\n"));
}

TEST(ServerTest, ServesWithoutAJob) {
  const auto serving = *Server::StartAlone("test", {.address = {.listen = "127.0.0.1:0"}}, {});
  EXPECT_THAT(serving->address(), ::testing::StartsWith("127.0.0.1:"));
  EXPECT_THAT(Server::StartAlone("test", {.address = {.listen = serving->address()}}, {}).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(serving->address())));
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
