// SPDX-License-Identifier: Apache-2.0
// Tests how a channel finds shared memory, works without it, and what a channel over it can do.

#include "rpc/connect.h"

#include <stdlib.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/ipc/host_identity.h"
#include "base/ipc/unix_socket.h"
#include "rpc/server.h"
#include "rpc/shm/handshake.h"
#include "rpc/shm/layout.h"
#include "rpc/shm/shm_server.h"
#include "tandem/v1/shared_memory.pb.h"
#include "tests/rpc/echo_service.h"
#include "tests/testing/all_descriptors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/test_key.h"
#include "tests/testing/watched.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::tandem::testing::Watched;
using testing::DeferredCalls;
using testing::DeferringService;
using testing::EchoService;
using ::testing::HasSubstr;
using testing::kEcho;
using testing::kTestTimeout;
using testing::Pattern;
using testing::PlainEchoService;

std::unique_ptr<Server> StartServer(Service service, ServerOptions options = {}) {
  auto server = Server::Start(options, {std::move(service)});
  TANDEM_CHECK_MSG(server.ok(), server.status().ToString());
  return *std::move(server);
}
std::string TargetOf(const Server& server) { return absl::StrCat("127.0.0.1:", server.port()); }

// Responds with as many bytes as the request's text says, in the transport's memory if it has any.
Service BorrowingService(std::atomic<int>* borrowed) {
  return EchoService([borrowed](std::shared_ptr<ServerCall> call) {
    const size_t bytes = std::stoul(call->request().Flatten());
    std::shared_ptr<char> memory = call->ResponseMemory(bytes);
    if (memory == nullptr) return call->Finish(Bytes(Pattern(bytes)));
    ++*borrowed;
    const std::string pattern = Pattern(bytes);
    std::memcpy(memory.get(), pattern.data(), bytes);
    const char* data = memory.get();
    call->Finish(Bytes(Slice(std::move(memory), data, bytes)));
  });
}

TEST(ConnectTest, AClientBeyondTheLimitOfSharedMemoryUsesGrpc) {
  auto server = StartServer(PlainEchoService(), {.max_shared_memory_connections = 1});
  TANDEM_ASSERT_OK_AND_ASSIGN(auto first, Connect(TargetOf(*server), {.transport = "shm"}));
  EXPECT_THAT(Connect(TargetOf(*server), {.transport = "shm"}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("1 connections through shared memory, which is its limit")));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto second, Connect(TargetOf(*server)));
  TANDEM_EXPECT_OK(second->Call(kEcho, Bytes(), {.timeout = kTestTimeout}));
  TANDEM_EXPECT_OK(first->Call(kEcho, Bytes(), {.timeout = kTestTimeout}));
}

TEST(ConnectTest, AServerThatHadNoDescriptorSharesMemoryAgain) {
  auto server = StartServer(PlainEchoService());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto member, Connect(TargetOf(*server), {.transport = "shm"}));
  {
    const tandem::testing::AllDescriptors taken;
    // Both ends are in this process: neither gets a descriptor.
    EXPECT_FALSE(Connect(TargetOf(*server), {.transport = "shm", .offer_timeout = absl::Seconds(1)}).ok());
    TANDEM_EXPECT_OK(member->Call(kEcho, Bytes(), {.timeout = kTestTimeout}));
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(auto late, Connect(TargetOf(*server), {.transport = "shm"}));
  TANDEM_EXPECT_OK(late->Call(kEcho, Bytes(), {.timeout = kTestTimeout}));
}

TEST(ServingThreadTest, OneThatNothingCouldWakeIsNotStarted) {
  const tandem::testing::AllDescriptors taken;
  EXPECT_THAT(shm::ServingThread::Start(std::make_shared<shm::Closing>()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("descriptor")));
}

TEST(ConnectTest, AServerOfThisHostSharesMemoryByItself) {
  auto server = StartServer(PlainEchoService());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, Connect(TargetOf(*server)));
  EXPECT_EQ(channel->transport(), "shm");
  EXPECT_EQ(channel->target(), TargetOf(*server));
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes response, channel->Call(kEcho, Bytes(), {}));
  EXPECT_TRUE(response.empty());

  TempDir directory;
  const std::string path = absl::StrCat("unix:", directory.File("socket"));
  auto unix_server = StartServer(PlainEchoService(), {.listen = path});
  TANDEM_ASSERT_OK_AND_ASSIGN(channel, Connect(path));
  EXPECT_EQ(channel->transport(), "shm");
}

TEST(ConnectTest, WithoutSharedMemoryCallsGoOverGrpcAndTheReasonIsLogged) {
  auto server = StartServer(PlainEchoService(), {.transport = "grpc"});
  auto sharing = StartServer(PlainEchoService());
  struct Case {
    std::string target, host, reason;
  };
  const Case cases[] = {{TargetOf(*server), "", "gRPC only"},
                        {TargetOf(*sharing), "another", "on another host"}};
  for (const Case& one : cases) {
    ::testing::internal::CaptureStderr();
    TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, Connect(one.target, {.host = one.host}));
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, HasSubstr(absl::StrCat(one.target, ": over tcp, without shared memory: ")));
    EXPECT_THAT(log, HasSubstr(one.reason));
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
    EXPECT_EQ(channel->transport(), "tcp");
    EXPECT_THAT(Connect(one.target, {.transport = "shm", .host = one.host}).status().message(),
                HasSubstr(one.reason));
    TANDEM_EXPECT_OK(channel->Call(kEcho, Bytes(), {}).status());
  }
}

TEST(ConnectTest, AServerThatIsNotThereIsNamedByItsCallsOnly) {
  ::testing::internal::CaptureStderr();
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, Connect("127.0.0.1:1"));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(channel->transport(), "tcp");
  EXPECT_THAT(channel->Call(kEcho, Bytes(), {.timeout = absl::Milliseconds(200)}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("127.0.0.1:1")));
  EXPECT_THAT(Connect("127.0.0.1:1", {.transport = "shm"}).status().message(), HasSubstr("127.0.0.1:1"));
}

TEST(ConnectTest, TheChoiceCanBeForced) {
  auto server = StartServer(PlainEchoService());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto grpc, Connect(TargetOf(*server), {.transport = "grpc"}));
  EXPECT_EQ(grpc->transport(), "tcp");
  TANDEM_ASSERT_OK_AND_ASSIGN(auto shm, Connect(TargetOf(*server), {.transport = "shm"}));
  EXPECT_EQ(shm->transport(), "shm");
  EXPECT_THAT(Connect(TargetOf(*server), {.transport = "pigeon"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("pigeon")));
  EXPECT_THAT(Connect("nonsense"), StatusIs(absl::StatusCode::kInvalidArgument));
  setenv("TANDEM_TRANSPORT", "grpc", 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto overridden, Connect(TargetOf(*server), {.transport = "shm"}));
  EXPECT_EQ(overridden->transport(), "tcp");
  setenv("TANDEM_TRANSPORT", "x", 1);
  EXPECT_THAT(Connect(TargetOf(*server)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("TANDEM_TRANSPORT")));
  unsetenv("TANDEM_TRANSPORT");
  EXPECT_THAT(Server::Start({.transport = "x"}, {}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Server::Start({.shared_memory_bytes = 1000}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("multiple of 2 MiB")));
}

TEST(ConnectTest, AnswersAndRequestsTravelInMemoryOfTheTransport) {
  std::atomic<int> borrowed{0};
  auto server = StartServer(BorrowingService(&borrowed));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, Connect(TargetOf(*server), {.transport = "shm"}));
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes response, channel->Call(kEcho, Bytes(std::string("1000000")), {}));
  EXPECT_EQ(borrowed, 1);
  ASSERT_EQ(response.slices().size(), 1u);
  EXPECT_TRUE(response.Flatten() == Pattern(1000000));

  auto echo = StartServer(PlainEchoService());
  TANDEM_ASSERT_OK_AND_ASSIGN(channel, Connect(TargetOf(*echo), {.transport = "shm"}));
  std::shared_ptr<char> memory = channel->RequestMemory(300000);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 64, 0u);
  const std::string pattern = Pattern(300000);
  std::memcpy(memory.get(), pattern.data(), pattern.size());
  const char* data = memory.get();
  Bytes request = EncodeBulk(v1::EchoMessage(), Bytes(Slice(std::move(memory), data, pattern.size())));
  TANDEM_ASSERT_OK_AND_ASSIGN(response, channel->Call(kEcho, request, {}));
  EXPECT_TRUE(response.Flatten() == request.Flatten());
}

TEST(ConnectTest, ASlowClientCostsTheServerBoundedMemory) {
  std::atomic<int> borrowed{0};
  Watched<int> served;
  const Service lending = BorrowingService(&borrowed);
  auto server = StartServer(EchoService([&](std::shared_ptr<ServerCall> call) {
                              ++served;
                              lending.methods[0].handler(std::move(call));
                            }),
                            {.shared_memory_bytes = 2 << 20});
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, Connect(TargetOf(*server), {.transport = "shm"}));
  // The client's only receiving thread is blocked in the first `done`.
  absl::Notification go_on, all_done;
  constexpr int kCalls = 100;
  std::atomic<int> right{0}, done{0};
  for (int i = 0; i < kCalls; ++i) {
    channel->CallAsync(kEcho, Bytes(std::string("500000")), {.timeout = 2 * kTestTimeout},
                       [&](absl::StatusOr<Bytes> response) {
                         go_on.WaitForNotificationWithTimeout(kTestTimeout);
                         if (response.ok() && response->Flatten() == Pattern(500000)) ++right;
                         if (++done == kCalls) all_done.Notify();
                       });
  }
  // The calls request 50 MB of responses; those that are produced fill the ring and the queue once. No event
  // reports that no more will follow: the test assumes so after none has followed for a while.
  int before = -1;
  const auto more = [&before](int now) { return now != before; };
  while (served.Await(more, absl::Milliseconds(100)) && before < kCalls) before = served;
  EXPECT_LE(served * 500000, 3 * (2 << 20) + 16 * 500000);
  EXPECT_EQ(done, 0);
  go_on.Notify();
  ASSERT_TRUE(all_done.WaitForNotificationWithTimeout(2 * kTestTimeout));
  EXPECT_EQ(right, kCalls);
}

TEST(ConnectTest, ParkedRequestsThatFillTheMemoryStopNobody) {
  DeferredCalls deferred_calls;
  auto server = StartServer(DeferringService(&deferred_calls), {.shared_memory_bytes = 2 << 20});
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, Connect(TargetOf(*server), {.transport = "shm"}));
  constexpr int kCalls = 30;
  std::atomic<int> right{0}, done{0};
  absl::Notification all_done;
  for (int i = 0; i < kCalls; ++i) {
    channel->CallAsync(
        kEcho, Bytes(std::string(300000, static_cast<char>(i))), {}, [&, i](absl::StatusOr<Bytes> response) {
          if (response.ok() && response->Flatten() == std::string(300000, static_cast<char>(i))) ++right;
          if (++done == kCalls) all_done.Notify();
        });
  }
  std::vector<std::shared_ptr<ServerCall>> parked;
  for (int i = 0; i < kCalls; ++i) {
    parked.push_back(deferred_calls.Take());
    ASSERT_NE(parked.back(), nullptr) << i;
  }
  for (auto call = parked.rbegin(); call != parked.rend(); ++call) (*call)->Finish((*call)->request());
  ASSERT_TRUE(all_done.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_EQ(right, kCalls);
}

TEST(ConnectTest, AStrangerGetsNoMemory) {
  auto server = StartServer(PlainEchoService());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto grpc, ConnectGrpc(TargetOf(*server)));
  v1::SharedMemoryOfferRequest request;
  v1::SharedMemoryOfferResponse offer;
  request.set_layout(shm::kMagic);
  request.set_host("elsewhere");
  constexpr char kOffer[] = "/tandem.v1.SharedMemory/Offer";
  TANDEM_ASSERT_OK(CallProto(*grpc, kOffer, request, &offer, {}));
  EXPECT_THAT(offer.refusal(), HasSubstr("another host"));
  EXPECT_EQ(offer.ticket(), "");
  request.set_host(ipc::HostIdentity());
  request.set_layout(shm::kMagic + 1);
  TANDEM_ASSERT_OK(CallProto(*grpc, kOffer, request, &offer, {}));
  EXPECT_THAT(offer.refusal(), HasSubstr("another version"));
  request.set_layout(shm::kMagic);
  TANDEM_ASSERT_OK(CallProto(*grpc, kOffer, request, &offer, {}));
  EXPECT_EQ(offer.refusal(), "");
  for (const std::string& ticket : {std::string(32, '0'), std::string(31, 'a') + "b"}) {
    EXPECT_THAT(shm::Dial(offer.socket(), ticket, absl::Now() + kTestTimeout, 1 << 20).status(),
                StatusIs(absl::StatusCode::kPermissionDenied));
  }
  // A client that sends nothing, or too much, delays no other client.
  TANDEM_ASSERT_OK_AND_ASSIGN(ipc::Descriptor silent, ipc::ConnectAbstract(offer.socket()));
  TANDEM_ASSERT_OK_AND_ASSIGN(ipc::Descriptor loud, ipc::ConnectAbstract(offer.socket()));
  EXPECT_TRUE(ipc::SendPacket(loud.get(), std::string(1000, 'x').data(), 1000));
  TANDEM_EXPECT_OK(shm::Dial(offer.socket(), offer.ticket(), absl::Now() + kTestTimeout, 1 << 20).status());
}

// A client cannot say over shared memory who it is: it is the one that got the ticket over gRPC.
TEST(ConnectTest, AConnectionHasTheIdentityOfTheCallThatGotItsTicket) {
  DeferredCalls deferred_calls;
  auto server = StartServer(DeferringService(&deferred_calls));
  for (const Caller& caller :
       {Caller{.run_id = "job", .epoch = 2, .member = "worker/1", .token = "token", .life = 3}, Caller()}) {
    ConnectOptions options;
    options.channel.caller = caller;
    options.transport = "shm";
    TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, Connect(TargetOf(*server), options));
    absl::Notification done;
    channel->CallAsync(kEcho, Bytes(), {.timeout = kTestTimeout},
                       [&](const absl::StatusOr<Bytes>&) { done.Notify(); });
    const std::shared_ptr<ServerCall> call = deferred_calls.Take();
    ASSERT_NE(call, nullptr);
    Caller expected = caller;
    if (caller.token.empty()) expected = tandem::testing::WithTestKey(caller);  // the channel's own
    EXPECT_EQ(call->caller().ToBytes(), expected.ToBytes());
    call->Finish(Bytes());
    ASSERT_TRUE(done.WaitForNotificationWithTimeout(kTestTimeout));
  }
}

TEST(ConnectTest, AConnectionThatAsksForTooManyTicketsIsToldThatThisPasses) {
  auto server = StartServer(PlainEchoService());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto grpc, ConnectGrpc(TargetOf(*server)));
  v1::SharedMemoryOfferRequest request;
  request.set_layout(shm::kMagic);
  request.set_host(ipc::HostIdentity());
  v1::SharedMemoryOfferResponse offer;
  for (size_t i = 0; i < shm::Tickets::kMostOfPeer + 1; ++i) {
    EXPECT_EQ(offer.refusal(), "");
    TANDEM_ASSERT_OK(CallProto(*grpc, "/tandem.v1.SharedMemory/Offer", request, &offer, {}));
  }
  EXPECT_THAT(offer.refusal(), HasSubstr("open tickets"));
  EXPECT_TRUE(offer.passes());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto other, Connect(TargetOf(*server)));
  EXPECT_EQ(other->transport(), "shm");
}

TEST(ConnectTest, ARestartedServerIsFoundAgain) {
  DeferredCalls deferred_calls;
  // A host of this test's own: another program does not take the port between two servers.
  constexpr char kOwnHost[] = "127.0.77.5";
  auto server = StartServer(DeferringService(&deferred_calls), {.listen = absl::StrCat(kOwnHost, ":0")});
  const std::string target = absl::StrCat(kOwnHost, ":", server->port());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, Connect(target));
  ASSERT_EQ(channel->transport(), "shm");
  absl::Notification failed, served;
  absl::Status once;
  channel->CallAsync(kEcho, Bytes(), {}, [&](absl::StatusOr<Bytes> response) {
    once = response.status();
    failed.Notify();
  });
  ASSERT_NE(deferred_calls.Take(), nullptr);  // dropped below, after the server has stopped
  absl::StatusOr<Bytes> again;
  channel->CallAsync(kEcho, Bytes(), {.timeout = kTestTimeout, .idempotent = true},
                     [&](absl::StatusOr<Bytes> response) {
                       again = std::move(response);
                       served.Notify();
                     });
  auto parked = deferred_calls.Take();
  server->Shutdown(absl::ZeroDuration());
  server.reset();
  ASSERT_TRUE(failed.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_FALSE(once.ok());
  server = StartServer(PlainEchoService(), {.listen = target});
  ASSERT_TRUE(served.WaitForNotificationWithTimeout(kTestTimeout));
  TANDEM_EXPECT_OK(again.status());
  // A call makes the channel look for shared memory in the background, so the test makes calls until one uses
  // it.
  const absl::Time give_up = absl::Now() + kTestTimeout;
  while (channel->transport() != "shm" && absl::Now() < give_up) {
    TANDEM_EXPECT_OK(channel->Call(kEcho, Bytes(), {.idempotent = true}).status());
  }
  EXPECT_EQ(channel->transport(), "shm");
}

TEST(ConnectTest, WaitingThreadsHelpThemselvesAndOneAnother) {
  auto server = StartServer(PlainEchoService());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, Connect(TargetOf(*server), {.transport = "shm"}));
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        v1::EchoMessage message;
        message.add_numbers(t * 1000 + i);
        const std::string text = message.SerializeAsString();
        absl::StatusOr<Bytes> response = channel->Call(kEcho, Bytes(text), {});
        if (response.ok() && response->Flatten() == text) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 1200);
}

TEST(ConnectTest, AHelperMeetsItsDeadlineAndACancelledCallIsToldToTheServer) {
  DeferredCalls deferred_calls;
  auto server = StartServer(DeferringService(&deferred_calls));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, Connect(TargetOf(*server), {.transport = "shm"}));
  EXPECT_THAT(channel->Call(kEcho, Bytes(), {.timeout = absl::Milliseconds(50)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  ASSERT_NE(deferred_calls.Take(), nullptr);
  channel->CallAsync(kEcho, Bytes(), {.timeout = kTestTimeout}, [](absl::StatusOr<Bytes>) {});
  auto parked = deferred_calls.Take();
  ASSERT_NE(parked, nullptr);
  EXPECT_FALSE(parked->IsCancelled());
  absl::Notification cancelled;
  parked->OnCancel([&cancelled] { cancelled.Notify(); });
  EXPECT_TRUE(absl::StartsWith(parked->peer(), "shm:process ")) << parked->peer();
  channel.reset();
  EXPECT_TRUE(cancelled.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_TRUE(parked->IsCancelled());
}

}  // namespace
}  // namespace tandem::rpc
