// SPDX-License-Identifier: Apache-2.0
// Tests what only a gRPC server over a network has: generic clients, health, reflection, addresses, restarts,
// shutdown.

#include "rpc/server.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "rpc/channel.h"
#include "rpc/grpc/grpc_bytes.h"
#include "rpc/wire/frame.h"
#include "tandem/v1/echo.grpc.pb.h"
#include "tests/rpc/echo_service.h"
#include "tests/rpc/stock_credentials.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::AnyOf;
using testing::AwaitCancelled;
using testing::DeferredCalls;
using testing::DeferringService;
using testing::EchoService;
using ::testing::HasSubstr;
using testing::kEcho;
using testing::kTestTimeout;
using ::testing::Not;
using testing::Pattern;
using testing::PlainEchoService;
using ::testing::StartsWith;

std::unique_ptr<Server> StartServer(Service service, ServerOptions options = {}) {
  auto server = Server::Start(options, {std::move(service)});
  TANDEM_CHECK_MSG(server.ok(), server.status().ToString());
  return *std::move(server);
}

std::string TargetOf(const Server& server) { return absl::StrCat("127.0.0.1:", server.port()); }

// A host of this test's own: another program does not take a port there between two servers of a test.
constexpr char kOwnHost[] = "127.0.77.3";
const ServerOptions kAtOwnHost = {.listen = absl::StrCat(kOwnHost, ":0")};
std::string TargetAtOwnHost(const Server& server) { return absl::StrCat(kOwnHost, ":", server.port()); }

std::unique_ptr<Channel> ChannelTo(const std::string& target, ChannelOptions options = {}) {
  auto channel = ConnectGrpc(target, options);
  TANDEM_CHECK_MSG(channel.ok(), channel.status().ToString());
  return *std::move(channel);
}

std::shared_ptr<grpc::Channel> StockChannel(const Server& server) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto credentials = testing::StockChannelCredentials(&arguments);
  return grpc::CreateCustomChannel(TargetOf(server), credentials, arguments);
}

TEST(ServerTest, ACompressedRequestIsRefusedAndNotUnpacked) {
  std::atomic<int> handled = 0;
  auto server = StartServer(EchoService([&](std::shared_ptr<ServerCall> call) {
    ++handled;
    call->Finish(Bytes());
  }));
  auto stub = v1::Echo::NewStub(StockChannel(*server));
  v1::EchoMessage request, response;
  request.set_text(std::string(1 << 20, 'x'));
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    EXPECT_EQ(stub->Echo(&context, request, &response).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
  EXPECT_EQ(handled, 0);
}

TEST(ServerTest, AStockStubSeesTheSameBytesBothWays) {
  absl::Mutex mutex;
  std::string seen;  // the request as received
  auto server = StartServer(EchoService([&](std::shared_ptr<ServerCall> call) {
    {
      absl::MutexLock lock(&mutex);
      seen = call->request().Flatten();
    }
    v1::EchoMessage header;
    Bytes payload;
    TANDEM_CHECK(DecodeBulk(call->request(), &header, &payload).ok());
    call->Finish(EncodeBulk(header, std::move(payload)));
  }));
  auto stub = v1::Echo::NewStub(StockChannel(*server));
  for (size_t size : {size_t{0}, size_t{1}, size_t{64} << 10, kMaxUnaryBytes - 100}) {
    v1::EchoMessage request, response;
    request.set_text("stock");
    request.add_numbers(size);
    request.set_payload(Pattern(size));
    grpc::ClientContext context;
    const grpc::Status status = stub->Echo(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.text(), "stock");
    EXPECT_EQ(response.numbers(0), size);
    EXPECT_TRUE(response.payload() == request.payload());
    // The generic client has sent the same bytes as Tandem's client would.
    v1::EchoMessage header = request;
    header.clear_payload();
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(seen == EncodeBulk(header, Bytes(request.payload())).Flatten());
  }
}

TEST(ServerTest, OurChannelReadsWhatAStockServerSends) {
  class StockService : public v1::Echo::Service {
    grpc::Status Echo(grpc::ServerContext*, const v1::EchoMessage* request,
                      v1::EchoMessage* response) override {
      *response = *request;
      return grpc::Status::OK;
    }
  } service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddListeningPort("127.0.0.1:0", testing::StockServerCredentials(), &port);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  auto channel = ChannelTo(absl::StrCat("127.0.0.1:", port));
  for (size_t size : {size_t{0}, size_t{1}, size_t{5} << 20}) {
    v1::EchoMessage header;
    header.set_text("ours");
    Bytes request = EncodeBulk(header, Bytes(Pattern(size)));
    TANDEM_ASSERT_OK_AND_ASSIGN(Bytes answer, channel->Call(kEcho, request, {}));
    EXPECT_TRUE(answer.Flatten() == request.Flatten());
  }
}

TEST(ServerTest, OversizedMessagesAreRefusedBySizeAndName) {
  auto server = StartServer(PlainEchoService(), {.max_message_bytes = 100000});
  const std::string target = TargetOf(*server);
  const Bytes small = EncodeBulk(v1::EchoMessage(), Bytes(Pattern(50000)));
  const Bytes large = EncodeBulk(v1::EchoMessage(), Bytes(Pattern(200000)));
  auto channel = ChannelTo(target);
  EXPECT_THAT(channel->Call(kEcho, small, {}), IsOk());
  EXPECT_THAT(channel->Call(kEcho, large, {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("larger than max"), HasSubstr("100000"), HasSubstr(target))));
  EXPECT_THAT(channel->Call(kEcho, small, {}), IsOk());

  auto modest = ChannelTo(target, {.max_message_bytes = 1000});
  EXPECT_THAT(modest->Call(kEcho, small, {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("limit of 1000 bytes"), HasSubstr("max_message_bytes"))));
}

TEST(ServerTest, OversizedAnswersAreRefusedOnEitherSide) {
  auto server =
      StartServer(EchoService([](std::shared_ptr<ServerCall> call) { call->Finish(Bytes(Pattern(200000))); }),
                  {.max_message_bytes = 100000});
  EXPECT_THAT(ChannelTo(TargetOf(*server))->Call(kEcho, Bytes(), {}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("an answer of 200000 bytes")));
  auto generous = StartServer(
      EchoService([](std::shared_ptr<ServerCall> call) { call->Finish(Bytes(Pattern(200000))); }));
  EXPECT_THAT(ChannelTo(TargetOf(*generous), {.max_message_bytes = 1000})->Call(kEcho, Bytes(), {}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("larger than max")));
}

TEST(ServerTest, LongErrorMessagesArriveCutWithTheirCode) {
  auto server = StartServer(EchoService([](std::shared_ptr<ServerCall> call) {
    call->Finish(absl::FailedPreconditionError("gradient " + std::string(100000, '\xff')));
  }));
  EXPECT_THAT(ChannelTo(TargetOf(*server))->Call(kEcho, Bytes(), {}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("gradient ")));
}

TEST(ServerTest, ARefusedConnectionNamesTargetAndMethod) {
  std::string target;
  {
    auto server = StartServer(PlainEchoService(), kAtOwnHost);
    target = TargetAtOwnHost(*server);
  }
  EXPECT_THAT(ChannelTo(target)->Call(kEcho, Bytes(), {}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(absl::StrCat(kEcho, " at ", target)), HasSubstr("refused"))));
  EXPECT_THAT(ChannelTo(target)->Call(kEcho, Bytes(), {.timeout = absl::Seconds(1), .idempotent = true}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr(target), HasSubstr("refused"))));
}

TEST(ServerTest, MalformedTargetsAreRefusedAtOnce) {
  for (const char* target : {"", "host", "host:0", "host:port", "unix:relative"}) {
    EXPECT_THAT(ConnectGrpc(target),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat("\"", target, "\""))))
        << target;
  }
}

TEST(ServerTest, AnIdempotentCallWaitsForAServerThatIsStillStarting) {
  std::string target;
  {
    auto server = StartServer(PlainEchoService(), kAtOwnHost);
    target = TargetAtOwnHost(*server);
  }
  auto channel = ChannelTo(target);
  EXPECT_THAT(channel->Call(kEcho, Bytes(), {}), StatusIs(absl::StatusCode::kUnavailable));
  absl::Notification answered;
  absl::StatusOr<Bytes> answer;
  channel->CallAsync(kEcho, Bytes(), {.timeout = kTestTimeout, .idempotent = true},
                     [&](absl::StatusOr<Bytes> got) {
                       answer = std::move(got);
                       answered.Notify();
                     });
  auto server = StartServer(PlainEchoService(), {.listen = target});
  ASSERT_TRUE(answered.WaitForNotificationWithTimeout(kTestTimeout));
  TANDEM_EXPECT_OK(answer);
}

TEST(ServerTest, IdempotentCallsOutliveARestartAndOthersFailOnce) {
  DeferredCalls deferred_calls;
  auto server = StartServer(DeferringService(&deferred_calls), kAtOwnHost);
  const std::string target = TargetAtOwnHost(*server);
  auto channel = ChannelTo(target);
  absl::Notification retried, failed;
  absl::StatusOr<Bytes> retried_response, failed_response;
  channel->CallAsync(kEcho, Bytes(std::string("once more")), {.idempotent = true},
                     [&](absl::StatusOr<Bytes> got) {
                       retried_response = std::move(got);
                       retried.Notify();
                     });
  channel->CallAsync(kEcho, Bytes(), {}, [&](absl::StatusOr<Bytes> got) {
    failed_response = std::move(got);
    failed.Notify();
  });
  auto parked = {deferred_calls.Take(), deferred_calls.Take()};
  for (const auto& call : parked) {
    ASSERT_NE(call, nullptr);
    call->Finish(absl::UnavailableError("the server is going down"));
  }
  server.reset();
  ASSERT_TRUE(failed.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_THAT(failed_response, StatusIs(absl::StatusCode::kUnavailable));

  std::atomic<int> calls{0};
  server = StartServer(EchoService([&calls](std::shared_ptr<ServerCall> call) {
                         ++calls;
                         call->Finish(call->request());
                       }),
                       {.listen = target});
  ASSERT_TRUE(retried.WaitForNotificationWithTimeout(kTestTimeout));
  TANDEM_ASSERT_OK(retried_response);
  EXPECT_EQ(retried_response->Flatten(), "once more");
  EXPECT_EQ(calls, 1);
}

TEST(ServerTest, ARestartedServerIsFoundAsSoonAsACallIsTriedAgain) {
  auto server = StartServer(PlainEchoService(), kAtOwnHost);
  const std::string target = TargetAtOwnHost(*server);
  auto channel = ChannelTo(target);
  std::vector<absl::Duration> took;
  for (int round = 0; round < 3; ++round) {
    TANDEM_ASSERT_OK(channel->Call(kEcho, Bytes(), {}));
    server.reset();
    // Returns once the connection has been refused.
    ASSERT_THAT(channel->Call(kEcho, Bytes(), {}), StatusIs(absl::StatusCode::kUnavailable));
    ASSERT_THAT(channel->Call(kEcho, Bytes(), {.timeout = absl::Milliseconds(300), .idempotent = true}),
                Not(IsOk()));
    server = StartServer(PlainEchoService(), {.listen = target});
    const absl::Time begin = absl::Now();
    TANDEM_ASSERT_OK(channel->Call(kEcho, Bytes(), {.timeout = kTestTimeout, .idempotent = true}));
    took.push_back(absl::Now() - begin);
  }
  std::sort(took.begin(), took.end());
  EXPECT_LT(took[1], absl::Milliseconds(2500)) << "gRPC left to itself looks at a connection every 5 s";
}

TEST(ServerTest, AnAddressInUseIsNamed) {
  auto first = StartServer(PlainEchoService());
  const std::string listen = TargetOf(*first);
  EXPECT_THAT(Server::Start({.listen = listen}, {PlainEchoService()}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(listen), HasSubstr("in use"), HasSubstr("choose another port"))));
  EXPECT_THAT(Server::Start({.listen = "nonsense"}, {}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Server::Start({.listen = "192.0.2.1:0"}, {}), StatusIs(absl::StatusCode::kInvalidArgument));

  TempDir directory;
  const std::string path = "unix:" + directory.File("socket");
  auto unix_server = StartServer(PlainEchoService(), {.listen = path});
  EXPECT_EQ(unix_server->port(), 0);
  EXPECT_THAT(Server::Start({.listen = path}, {PlainEchoService()}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("already listens")));
  TANDEM_EXPECT_OK(ChannelTo(path)->Call(kEcho, Bytes(), {}));  // the attempt above had no effect
}

TEST(ServerTest, TheCallKnowsItsPeerAndDeadline) {
  DeferredCalls deferred_calls;
  auto server = StartServer(DeferringService(&deferred_calls));
  auto channel = ChannelTo(TargetOf(*server));
  const absl::Time before = absl::Now();
  channel->CallAsync(kEcho, Bytes(), {.timeout = absl::Seconds(100)}, [](absl::StatusOr<Bytes>) {});
  auto call = deferred_calls.Take();
  ASSERT_NE(call, nullptr);
  EXPECT_THAT(call->peer(), StartsWith("ipv4:127.0.0.1:"));
  EXPECT_GT(call->deadline(), before + absl::Seconds(90));
  EXPECT_LT(call->deadline(), absl::Now() + absl::Seconds(110));
  EXPECT_FALSE(call->IsCancelled());
  call->Finish(Bytes());
}

TEST(ServerTest, AClientThatGoesAwayCancelsItsParkedCalls) {
  DeferredCalls deferred_calls;
  auto server = StartServer(DeferringService(&deferred_calls));
  auto channel = ChannelTo(TargetOf(*server));
  channel->CallAsync(kEcho, Bytes(), {}, [](absl::StatusOr<Bytes>) {});
  auto call = deferred_calls.Take();
  ASSERT_NE(call, nullptr);
  channel.reset();
  EXPECT_TRUE(AwaitCancelled(*call));
}

TEST(ServerTest, ShutdownCancelsWhatIsParkedPastTheGrace) {
  DeferredCalls deferred_calls;
  auto server = StartServer(DeferringService(&deferred_calls));
  auto channel = ChannelTo(TargetOf(*server));
  absl::Notification answered;
  absl::StatusOr<Bytes> answer;
  channel->CallAsync(kEcho, Bytes(), {.timeout = kTestTimeout}, [&](absl::StatusOr<Bytes> got) {
    answer = std::move(got);
    answered.Notify();
  });
  auto call = deferred_calls.Take();
  ASSERT_NE(call, nullptr);
  const absl::Time start = absl::Now();
  server->Shutdown(absl::Milliseconds(50));
  EXPECT_LT(absl::Now() - start, kTestTimeout / 2);
  EXPECT_TRUE(call->IsCancelled());
  ASSERT_TRUE(answered.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_THAT(answer,
              AnyOf(StatusIs(absl::StatusCode::kCancelled), StatusIs(absl::StatusCode::kUnavailable)));
  server->Shutdown(absl::ZeroDuration());  // a second call has no effect
  server.reset();
  call->Finish(Bytes());  // no client waits for it; it must not crash
}

TEST(ServerTest, ShutdownLetsARunningCallFinishWithinTheGrace) {
  DeferredCalls deferred_calls;
  auto server = StartServer(DeferringService(&deferred_calls));
  auto channel = ChannelTo(TargetOf(*server));
  absl::Notification answered;
  absl::StatusOr<Bytes> answer;
  channel->CallAsync(kEcho, Bytes(), {}, [&](absl::StatusOr<Bytes> got) {
    answer = std::move(got);
    answered.Notify();
  });
  auto call = deferred_calls.Take();
  ASSERT_NE(call, nullptr);
  std::thread shutdown([&server] { server->Shutdown(kTestTimeout); });
  // New calls are refused once the shutdown has begun; the test detects it that way.
  const absl::Time give_up = absl::Now() + kTestTimeout;
  absl::Status refused;
  while (refused.ok() && absl::Now() < give_up) {
    auto late = ChannelTo(TargetOf(*server));
    refused = late->Call("/tandem.v1.Echo/Nothing", Bytes(), {}).status();
    if (absl::IsUnimplemented(refused)) refused = absl::OkStatus();  // still serving
  }
  EXPECT_THAT(refused, Not(IsOk()));
  call->Finish(Bytes(std::string("in time")));
  shutdown.join();
  ASSERT_TRUE(answered.WaitForNotificationWithTimeout(kTestTimeout));
  TANDEM_ASSERT_OK(answer);
  EXPECT_EQ(answer->Flatten(), "in time");
}

// A stream of raw messages to a method of the server, as grpcurl opens it.
class RawStream {
 public:
  RawStream(const Server& server, const std::string& method) : stub_(StockChannel(server)) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kTestTimeout));
    stream_ = stub_.PrepareCall(&context_, method, &queue_);
    stream_->StartCall(nullptr);
    Next();
  }
  ~RawStream() {
    context_.TryCancel();
    grpc::Status status;
    stream_->Finish(&status, nullptr);
    Next();
  }
  bool Write(const std::string& message) {
    stream_->Write(ToByteBuffer(Bytes(message)), nullptr);
    return Next();
  }
  // Returns "(end)" if there is nothing more to read.
  std::string Read() {
    grpc::ByteBuffer buffer;
    stream_->Read(&buffer, nullptr);
    return Next() ? FromByteBuffer(buffer).Flatten() : "(end)";
  }

 private:
  bool Next() {
    void* tag;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

// grpc.health.v1.HealthCheckResponse { status: SERVING = 1, NOT_SERVING = 2, SERVICE_UNKNOWN = 3 }
constexpr char kServing[] = "\x08\x01";
constexpr char kNotServing[] = "\x08\x02";

TEST(ServerTest, HealthTellsServingThenNotServing) {
  auto server = StartServer(PlainEchoService());
  auto channel = ChannelTo(TargetOf(*server));
  const std::string echo_service = "\x0a\x0etandem.v1.Echo";  // HealthCheckRequest { service }
  for (const std::string& request : {std::string(), echo_service}) {
    TANDEM_ASSERT_OK_AND_ASSIGN(Bytes answer,
                                channel->Call("/grpc.health.v1.Health/Check", Bytes(request), {}));
    EXPECT_EQ(answer.Flatten(), kServing);
  }
  EXPECT_THAT(channel->Call("/grpc.health.v1.Health/Check", Bytes(std::string("\x0a\x02no")), {}),
              StatusIs(absl::StatusCode::kNotFound));

  RawStream watch(*server, "/grpc.health.v1.Health/Watch");
  ASSERT_TRUE(watch.Write(echo_service));
  EXPECT_EQ(watch.Read(), kServing);
  std::thread shutdown([&server] { server->Shutdown(absl::Seconds(1)); });
  EXPECT_EQ(watch.Read(), kNotServing);
  shutdown.join();
}

TEST(ServerTest, ReflectionListsAndDescribesTheService) {
  auto server = StartServer(PlainEchoService(), {.reflection = true});
  RawStream reflection(*server, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
  ASSERT_TRUE(reflection.Write("\x3a\x01*"));  // list_services: "*"
  EXPECT_THAT(reflection.Read(), AllOf(HasSubstr("tandem.v1.Echo"), HasSubstr("grpc.health.v1.Health")));
  ASSERT_TRUE(reflection.Write("\x22\x0etandem.v1.Echo"));  // file_containing_symbol
  EXPECT_THAT(reflection.Read(), AllOf(HasSubstr("tandem/v1/echo.proto"), HasSubstr("EchoMessage")));
}

TEST(ServerTest, ReflectionIsOffUnlessAskedFor) {
  auto server = StartServer(PlainEchoService());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto channel, ConnectGrpc(absl::StrCat("127.0.0.1:", server->port())));
  EXPECT_THAT(channel->Call("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Bytes(), {}),
              StatusIs(absl::StatusCode::kUnimplemented));
}

}  // namespace
}  // namespace tandem::rpc
