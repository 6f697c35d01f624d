// SPDX-License-Identifier: Apache-2.0
#include "cluster/server.h"

#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/read_file.h"
#include "cluster/store/store_server.h"
#include "rpc/channel.h"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/test_key.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::HttpGet;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// grpc.health.v1.HealthCheckResponse { status: SERVING = 1, NOT_SERVING = 2 }
constexpr char kServing[] = "\x08\x01", kNotServing[] = "\x08\x02";

std::string HealthOf(const std::string& address) {
  const auto channel = *rpc::ConnectGrpc(address);
  return channel
      ->Call("/grpc.health.v1.Health/Check", Bytes(), {.timeout = absl::Seconds(60), .idempotent = true})
      .value()
      .Flatten();
}

// A store, and a process of role replay of the job that has it.
struct Job {
  Job() {
    StartStore();
    env.role = "replay";
    env.worker = false;
    env.role_rank = 1;
    env.role_world_size = 2;
    env.store = store;
    env.lease = absl::Seconds(4);
  }
  void StartStore() {
    server = *StoreServer::Start(store);
    store = absl::StrCat("127.0.77.12:", server->port());
  }
  // The store comes back at its address, without memory.
  void RestartStore() {
    server.reset();
    StartStore();
  }
  std::unique_ptr<Member> Join() const {
    auto member = Member::Join(env, {.outlives_job = true});
    TANDEM_CHECK_MSG(member.ok(), member.status().ToString());
    return *std::move(member);
  }
  std::string Registered() const {
    return server->store()->Get(RoleAddressKey("replay", 1), absl::Seconds(60)).value();
  }

  std::string store = "127.0.77.12:0";
  std::unique_ptr<StoreServer> server;
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

TEST(ServerTest, RegistersAgainWhenTheStoreHasLostItsMemory) {
  Job job;
  const auto member = job.Join();
  const auto serving = Serve(member.get());
  for (int i = 0; i < 3; ++i) {
    job.RestartStore();
    EXPECT_EQ(job.Registered(), serving->address());
    EXPECT_EQ(CountRoleServers(job.server->store(), "replay", absl::Seconds(60)).value(), 2);
  }
}

TEST(ServerTest, IsNotRegisteredAgainBeforeItIsReadyOrOnceItIsDrained) {
  Job job;
  const auto member = job.Join();
  const auto early = *Server::Start(member.get(), {.ready = false}, {});
  const auto drained = *Server::Start(
      member.get(),
      {.address = {.listen = "127.0.0.1:0"}, .registration = ServerOptions::Registration::kMember}, {});
  EXPECT_TRUE(job.server->store()->Check({member->name()}).value());
  drained->Drain();
  job.RestartStore();
  // The member has registered all that it owns when its heartbeat says so.
  const auto registered = [&] {
    const std::vector<MemberStatus> members = job.server->membership()->Statuses();
    return members.size() == 1 &&
           members[0].report.registered_with == job.server->membership()->incarnation();
  };
  const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
  while (!registered() && MonotonicNow() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(registered());
  EXPECT_FALSE(job.server->store()->Check({RoleAddressKey("replay", 1)}).value());
  EXPECT_FALSE(job.server->store()->Check({member->name()}).value());
}

TEST(ServerTest, CallersThatChangeSomethingNeedTheKeyOfTheServer) {
  const Job job;
  rpc::Service service{.name = "test.Service"};
  service.methods.push_back({"Change", rpc::Right::kTrain,
                             [](std::shared_ptr<rpc::ServerCall> call) { call->Finish(Bytes("done")); }});
  const auto member = job.Join();
  const auto of_job = *Server::Start(member.get(), {}, {service});
  const auto alone = *Server::StartAlone("replay", {.address = {.listen = "127.0.0.1:0"}}, {service});
  const rpc::JobKey other = rpc::JobKey::Make();
  for (const Server* server : {of_job.get(), alone.get()}) {
    const auto call = [&](const rpc::Caller& caller) {
      const auto channel = *rpc::ConnectGrpc(server->address(), {.caller = caller});
      return channel->Call("/test.Service/Change", Bytes(), {.timeout = absl::Seconds(60)}).status();
    };
    EXPECT_THAT(call(tandem::testing::WithTestKey()), tandem::testing::IsOk());
    // A channel presents the key of its process by itself.
    EXPECT_THAT(call({}), tandem::testing::IsOk());
    EXPECT_THAT(
        call(other.Identify({})),
        StatusIs(absl::StatusCode::kPermissionDenied,
                 ::testing::AllOf(HasSubstr(other.Id()), HasSubstr(tandem::testing::WithTestKey().key_id))));
  }
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
  const tandem::testing::TempDir directory;
  const std::string file = directory.File("SERVING");
  const auto serving = *Server::Start(member.get(), {.ready = false, .serving_file = file}, {});
  EXPECT_EQ(HealthOf(serving->address()), kNotServing);
  EXPECT_FALSE(job.server->store()->Check({RoleAddressKey("replay", 1)}).value());
  EXPECT_FALSE(ReadFile(file).ok());
  TANDEM_ASSERT_OK(serving->SetReady());
  EXPECT_EQ(HealthOf(serving->address()), kServing);
  EXPECT_EQ(job.Registered(), serving->address());
  EXPECT_EQ(ReadFile(file).value(), absl::StrCat(::getpid(), "\n"));
}

TEST(ServerTest, IsNotServingWhileItRegisters) {
  Job job;
  const auto member = job.Join();
  job.server.reset();
  const tandem::testing::TempDir directory;
  const std::string address = absl::StrCat("unix:", directory.File("socket"));
  std::unique_ptr<Server> serving;
  std::thread starting([&] {
    serving = *Server::Start(
        member.get(), {.address = {.listen = address}, .registration = ServerOptions::Registration::kMember},
        {});
  });
  EXPECT_EQ(HealthOf(address), kNotServing);
  job.StartStore();
  starting.join();
  EXPECT_EQ(HealthOf(address), kServing);
}

TEST(ServerTest, ItsAddressAndStateAreInTheStatus) {
  const Job job;
  const auto member = job.Join();
  const auto serving = Serve(member.get());
  EXPECT_EQ(member->status()->Get().address, serving->address());
  EXPECT_EQ(member->status()->Get().state, "serving");
}

TEST(ServerTest, ServesWithoutAJob) {
  const auto serving = *Server::StartAlone("test", {.address = {.listen = "127.0.0.1:0"}}, {});
  EXPECT_THAT(serving->address(), ::testing::StartsWith("127.0.0.1:"));
  EXPECT_THAT(Server::StartAlone("test", {.address = {.listen = serving->address()}}, {}).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(serving->address())));
}

TEST(ServerTest, ServesItsMetricsAndThoseOfItsProcess) {
  const tandem::testing::TempDir directory;
  for (const std::string& listen : {std::string("127.0.0.1:0"), absl::StrCat("unix:", directory.File("s"))}) {
    const auto serving = *Server::StartAlone(
        "test",
        {.address = {.listen = listen},
         .metrics = {.access = HttpAccess(), .text = [] { return "tandem_test_figures 7\n"; }}},
        {});
    const int port = serving->metrics_port();
    EXPECT_THAT(HttpGet(port, "/metrics"),
                AllOf(HasSubstr("text/plain"), HasSubstr("\ntandem_test_figures 7\n"),
                      HasSubstr("\nprocess_open_fds ")));
    const ServerOptions taken{.address = {.listen = "127.0.0.1:0"},
                              .metrics = {.access = HttpAccess{.port = port}}};
    EXPECT_THAT(Server::StartAlone("test", taken, {}).status(),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr("metrics"), HasSubstr(absl::StrCat("127.0.0.1:", port)))));
    serving->Drain();
    EXPECT_EQ(HttpGet(port, "/metrics"), "");
  }
}

TEST(ChooseAddressTest, AServerListensWhereItsEarlierLifeDid) {
  const std::string store = "127.0.0.1:29500";
  EXPECT_EQ(ChooseAddress({}, "", store, "replay/0")->listen, "127.0.0.1:0");
  EXPECT_EQ(ChooseAddress({}, "10.0.0.7:4711", store, "replay/0")->listen, "10.0.0.7:4711");
  const absl::StatusOr<ListenOptions> fixed = ChooseAddress(
      {.listen = "0.0.0.0:7500", .advertise = "replay0:7500"}, "replay0:7500", store, "replay/0");
  TANDEM_ASSERT_OK(fixed);
  EXPECT_EQ(fixed->listen, "0.0.0.0:7500");
  EXPECT_EQ(fixed->advertise, "replay0:7500");
}

TEST(ChooseAddressTest, AServerListensBesideAStoreWithAUnixSocket) {
  const std::string store = "unix:/run/tandem-sockets-1/store-0";
  EXPECT_EQ(ChooseAddress({}, "", store, "replay/0")->listen, "unix:/run/tandem-sockets-1/replay-0");
  EXPECT_EQ(ChooseAddress({.listen = "127.0.0.1:0"}, "", store, "replay/0")->listen, "127.0.0.1:0");
}

TEST(ChooseAddressTest, APickedPortIsPickedOnce) {
  const std::string store = "127.0.0.1:29500";
  const ListenOptions any = {.listen = "0.0.0.0:0", .advertise = "replay0"};
  EXPECT_EQ(ChooseAddress(any, "", store, "replay/0")->listen, "0.0.0.0:0");
  const absl::StatusOr<ListenOptions> again = ChooseAddress(any, "replay0:4711", store, "replay/0");
  TANDEM_ASSERT_OK(again);
  EXPECT_EQ(again->listen, "0.0.0.0:4711");
  EXPECT_EQ(again->advertise, "replay0");
  EXPECT_EQ(ChooseAddress({.listen = "[::]:0"}, "replay0:4711", store, "replay/0")->listen, "[::]:4711");
}

TEST(ChooseAddressTest, FlagsThatContradictEachOtherAreRefused) {
  const auto error = [](const ListenOptions& options) {
    return ChooseAddress(options, "", "127.0.0.1:29500", "replay/0").status();
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
