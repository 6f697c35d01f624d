// SPDX-License-Identifier: Apache-2.0
// The tests that every channel must pass, independent of its transport: one suite for gRPC over TCP, gRPC
// over a unix socket, shared memory and the loopback.

#include "rpc/channel.h"

#include <atomic>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "rpc/connect.h"
#include "rpc/server.h"
#include "rpc/transport/loopback.h"
#include "rpc/wire/frame.h"
#include "tests/rpc/echo_service.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using testing::DeferredCalls;
using testing::DeferringService;
using testing::EchoService;
using ::testing::HasSubstr;
using testing::kEcho;
using testing::kTestTimeout;
using testing::Pattern;
using testing::PlainEchoService;

// The services of a test and a channel to them.
class Link {
 public:
  virtual ~Link() = default;
  virtual std::unique_ptr<Channel> Connect() = 0;
};

class GrpcLink : public Link {
 public:
  GrpcLink(const std::string& listen, std::vector<Service> services, bool stream = true) : stream_(stream) {
    auto server = Server::Start({.listen = listen}, std::move(services));
    TANDEM_CHECK_MSG(server.ok(), server.status().ToString());
    server_ = *std::move(server);
    target_ = server_->port() == 0 ? listen : absl::StrCat("127.0.0.1:", server_->port());
  }
  ~GrpcLink() override { server_->Shutdown(absl::ZeroDuration()); }
  std::unique_ptr<Channel> Connect() override {
    auto channel = ConnectGrpc(target_, {.stream = stream_});
    TANDEM_CHECK_MSG(channel.ok(), channel.status().ToString());
    return *std::move(channel);
  }

 private:
  const bool stream_;
  std::unique_ptr<Server> server_;
  std::string target_;
};

class UnixLink : public Link {
 public:
  explicit UnixLink(std::vector<Service> services)
      : link_(absl::StrCat("unix:", directory_.File("socket")), std::move(services)) {}
  std::unique_ptr<Channel> Connect() override { return link_.Connect(); }

 private:
  TempDir directory_;
  GrpcLink link_;
};

class ShmLink : public Link {
 public:
  explicit ShmLink(std::vector<Service> services) {
    auto server = Server::Start({}, std::move(services));
    TANDEM_CHECK_MSG(server.ok(), server.status().ToString());
    server_ = *std::move(server);
  }
  ~ShmLink() override { server_->Shutdown(absl::ZeroDuration()); }
  std::unique_ptr<Channel> Connect() override {
    auto channel = rpc::Connect(absl::StrCat("127.0.0.1:", server_->port()), {.transport = "shm"});
    TANDEM_CHECK_MSG(channel.ok(), channel.status().ToString());
    return *std::move(channel);
  }

 private:
  std::unique_ptr<Server> server_;
};

class LoopbackLink : public Link {
 public:
  explicit LoopbackLink(std::vector<Service> services)
      : services_(std::make_shared<const std::vector<Service>>(std::move(services))) {}
  std::unique_ptr<Channel> Connect() override { return ConnectLoopback(services_); }

 private:
  std::shared_ptr<const std::vector<Service>> services_;
};

class ChannelTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Link> Serve(Service service) {
    std::vector<Service> services = {std::move(service)};
    if (GetParam() == "Tcp") return std::make_unique<GrpcLink>("127.0.0.1:0", std::move(services));
    if (GetParam() == "TcpCallByCall") {
      return std::make_unique<GrpcLink>("127.0.0.1:0", std::move(services), /*stream=*/false);
    }
    if (GetParam() == "Unix") return std::make_unique<UnixLink>(std::move(services));
    if (GetParam() == "Shm") return std::make_unique<ShmLink>(std::move(services));
    return std::make_unique<LoopbackLink>(std::move(services));
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, ChannelTest,
                         ::testing::Values("Tcp", "TcpCallByCall", "Unix", "Shm", "Loopback"),
                         [](const auto& info) { return info.param; });

TEST_P(ChannelTest, PayloadsOfEverySizeComeBackUnchanged) {
  auto link = Serve(PlainEchoService());
  auto channel = link->Connect();
  const size_t largest = GetParam() == "TcpCallByCall" ? kMaxUnaryBytes - 100 : size_t{64} << 20;
  for (size_t size : {size_t{0}, size_t{1}, size_t{1000}, size_t{1024}, size_t{64} << 10, largest}) {
    v1::EchoMessage sent;
    sent.set_text(absl::StrCat("size ", size));
    sent.add_numbers(size);
    const std::string payload = Pattern(size);
    TANDEM_ASSERT_OK_AND_ASSIGN(
        Bytes answer, channel->Call(kEcho, EncodeBulk(sent, Bytes(payload)), {.timeout = 4 * kTestTimeout}));
    v1::EchoMessage got;
    Bytes got_payload;
    TANDEM_ASSERT_OK(DecodeBulk(answer, &got, &got_payload));
    EXPECT_EQ(got.SerializeAsString(), sent.SerializeAsString());
    ASSERT_EQ(got_payload.size(), size);
    EXPECT_TRUE(got_payload.Flatten() == payload);
  }
}

TEST_P(ChannelTest, MemoryWithoutAnOwnerIsReadBeforeTheCallIsDone) {
  auto link = Serve(PlainEchoService());
  auto channel = link->Connect();
  const std::string payload = Pattern(100000);
  Bytes request = EncodeBulk(v1::EchoMessage(), Bytes(Slice::Unowned(payload.data(), payload.size())));
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes answer, channel->Call(kEcho, request, {}));
  EXPECT_EQ(answer.Flatten(), request.Flatten());
}

TEST_P(ChannelTest, AnEmptyMessageIsAMessage) {
  auto link = Serve(PlainEchoService());
  auto channel = link->Connect();
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes answer, channel->Call(kEcho, Bytes(), {}));
  EXPECT_EQ(answer.size(), 0);
}

TEST_P(ChannelTest, ProtobufCallsNeedNoCodec) {
  auto link = Serve(EchoService(ProtoHandler<v1::EchoMessage, v1::EchoMessage>(
      [](const v1::EchoMessage& request) -> absl::StatusOr<v1::EchoMessage> {
        if (request.text() == "fail") return absl::NotFoundError("no such thing");
        v1::EchoMessage response = request;
        response.add_numbers(request.numbers_size());
        return response;
      })));
  auto channel = link->Connect();
  v1::EchoMessage request;
  v1::EchoMessage response;
  request.add_numbers(7);
  TANDEM_ASSERT_OK(CallProto(*channel, kEcho, request, &response, {}));
  EXPECT_EQ(response.numbers_size(), 2);
  request.set_text("fail");
  EXPECT_THAT(CallProto(*channel, kEcho, request, &response, {}),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("no such thing"), HasSubstr(kEcho), HasSubstr(channel->target()))));
  EXPECT_THAT(channel->Call(kEcho, Bytes(std::string("\xff\xff")), {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tandem.v1.EchoMessage")));
}

TEST_P(ChannelTest, EveryStatusCodeTravels) {
  auto link = Serve(EchoService([](std::shared_ptr<ServerCall> call) {
    v1::EchoMessage header;
    Bytes payload;
    TANDEM_CHECK(DecodeBulk(call->request(), &header, &payload).ok());
    call->Finish(absl::Status(static_cast<absl::StatusCode>(header.numbers(0)), header.text()));
  }));
  auto channel = link->Connect();
  for (int code = 1; code <= 16; ++code) {
    v1::EchoMessage request;
    request.add_numbers(code);
    request.set_text(absl::StrCat("Umlaute \xc3\xa4\n100% in code ", code));
    EXPECT_THAT(channel->Call(kEcho, EncodeBulk(request, {}), {}),
                StatusIs(static_cast<absl::StatusCode>(code), HasSubstr(request.text())));
  }
}

TEST_P(ChannelTest, AnUnknownMethodIsUnimplemented) {
  auto link = Serve(PlainEchoService());
  auto channel = link->Connect();
  EXPECT_THAT(channel->Call("/tandem.v1.Echo/Shout", Bytes(), {}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("/tandem.v1.Echo/Shout")));
  EXPECT_THAT(channel->Call("/tandem.v1.Nobody/Echo", Bytes(), {}),
              StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(channel->Call("nonsense", Bytes(), {}), ::testing::Not(::tandem::testing::IsOk()));
}

TEST_P(ChannelTest, AParkedCallEndsAtTheCallersDeadline) {
  DeferredCalls deferred_calls;
  auto link = Serve(DeferringService(&deferred_calls));
  auto channel = link->Connect();
  // On a busy machine a short deadline may pass before the call has reached the server. The test then tries a
  // longer one.
  std::shared_ptr<ServerCall> call;
  for (absl::Duration timeout = absl::Milliseconds(200); call == nullptr && timeout < kTestTimeout;
       timeout *= 3) {
    EXPECT_THAT(
        channel->Call(kEcho, Bytes(), {.timeout = timeout}),
        StatusIs(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr(kEcho), HasSubstr(channel->target()))));
    call = deferred_calls.Take(absl::Milliseconds(100));
  }
  ASSERT_NE(call, nullptr);
  EXPECT_LT(call->deadline(), absl::Now() + kTestTimeout);
  // The server detects it by the clock, or the client, which has given up, tells it.
  absl::Notification told;
  call->OnCancel([&told] { told.Notify(); });
  told.WaitForNotificationWithDeadline(call->deadline());
  if (!call->IsCancelled()) told.WaitForNotificationWithTimeout(kTestTimeout);
  EXPECT_TRUE(call->IsCancelled());
  call->Finish(Bytes(std::string("late")));  // no effect
}

TEST_P(ChannelTest, AHandlerMayFinishFromAnotherThread) {
  DeferredCalls deferred_calls;
  auto link = Serve(DeferringService(&deferred_calls));
  auto channel = link->Connect();
  std::thread answerer([&deferred_calls] {
    auto call = deferred_calls.Take();
    if (call != nullptr) call->Finish(Bytes(std::string("from afar")));
  });
  absl::StatusOr<Bytes> answer = channel->Call(kEcho, Bytes(), {});
  answerer.join();
  TANDEM_ASSERT_OK(answer);
  EXPECT_EQ(answer->Flatten(), "from afar");
}

TEST_P(ChannelTest, ACallDroppedByItsHandlerIsInternal) {
  auto link = Serve(EchoService([](std::shared_ptr<ServerCall>) {}));
  auto channel = link->Connect();
  EXPECT_THAT(channel->Call(kEcho, Bytes(), {}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("gave no answer")));
}

TEST_P(ChannelTest, OnlyTheFirstAnswerCounts) {
  auto link = Serve(EchoService([](std::shared_ptr<ServerCall> call) {
    call->Finish(Bytes(std::string("first")));
    call->Finish(absl::InternalError("second"));
  }));
  auto channel = link->Connect();
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes answer, channel->Call(kEcho, Bytes(), {}));
  EXPECT_EQ(answer.Flatten(), "first");
}

TEST_P(ChannelTest, ManyCallsFromManyThreadsGetTheirOwnAnswers) {
  auto link = Serve(PlainEchoService());
  auto channel = link->Connect();
  constexpr int kThreads = 4;
  constexpr int kCalls = 100;
  std::atomic<int> right{0};
  std::atomic<int> done{0};
  absl::Notification all_done;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kCalls; ++i) {
        v1::EchoMessage message;
        message.add_numbers(t * kCalls + i);
        std::string expected = message.SerializeAsString();
        channel->CallAsync(kEcho, EncodeBulk(message, {}), {}, [&, expected](absl::StatusOr<Bytes> answer) {
          if (answer.ok() && answer->Flatten() == expected) ++right;
          if (++done == kThreads * kCalls) all_done.Notify();
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(all_done.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_EQ(right, kThreads * kCalls);
}

TEST_P(ChannelTest, DestroyingAChannelCancelsItsCallsAndWaitsForThem) {
  DeferredCalls deferred_calls;
  auto link = Serve(DeferringService(&deferred_calls));
  auto channel = link->Connect();
  std::vector<absl::StatusCode> codes;  // not guarded: the destructor waits for the last `done`
  absl::Mutex mutex;
  for (int i = 0; i < 3; ++i) {
    channel->CallAsync(kEcho, Bytes(), {}, [&](absl::StatusOr<Bytes> answer) {
      absl::MutexLock lock(&mutex);
      codes.push_back(answer.status().code());
    });
  }
  ASSERT_NE(deferred_calls.Take(), nullptr);
  channel.reset();
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(codes.size(), 3);
  // The call that was taken and dropped may have got its response (Internal) first.
  EXPECT_GE(std::count(codes.begin(), codes.end(), absl::StatusCode::kCancelled), 2);
}

TEST_P(ChannelTest, AChannelMayBeDestroyedInsideDone) {
  auto link = Serve(PlainEchoService());
  std::unique_ptr<Channel> channel = link->Connect();
  Channel* raw = channel.get();
  absl::Notification gone;
  raw->CallAsync(kEcho, Bytes(), {}, [&gone, channel = std::move(channel)](absl::StatusOr<Bytes>) mutable {
    channel.reset();
    gone.Notify();
  });
  EXPECT_TRUE(gone.WaitForNotificationWithTimeout(kTestTimeout));
}

TEST_P(ChannelTest, ACallMadeWhileTheChannelGoesIsCancelled) {
  DeferredCalls deferred_calls;
  auto link = Serve(DeferringService(&deferred_calls));
  auto channel = link->Connect();
  Channel* raw = channel.get();
  std::optional<absl::Status> second;
  raw->CallAsync(kEcho, Bytes(), {}, [&, raw](absl::StatusOr<Bytes>) {
    raw->CallAsync(kEcho, Bytes(), {}, [&](absl::StatusOr<Bytes> answer) { second = answer.status(); });
  });
  auto parked = deferred_calls.Take();
  ASSERT_NE(parked, nullptr);
  channel.reset();
  ASSERT_TRUE(second.has_value());
  EXPECT_THAT(*second, StatusIs(absl::StatusCode::kCancelled));
}

TEST_P(ChannelTest, ACancelledCallEndsAtOnceAndItsHandlerIsTold) {
  DeferredCalls deferred_calls;
  auto link = Serve(DeferringService(&deferred_calls));
  auto channel = link->Connect();
  std::stop_source source;
  absl::Notification over;
  absl::Status status;
  channel->CallAsync(kEcho, Bytes(), {.cancel = source.get_token()}, [&](absl::StatusOr<Bytes> answer) {
    status = answer.status();
    over.Notify();
  });
  std::shared_ptr<ServerCall> call = deferred_calls.Take();
  ASSERT_NE(call, nullptr);
  absl::Notification told;
  call->OnCancel([&told] { told.Notify(); });
  EXPECT_FALSE(told.HasBeenNotified());
  source.request_stop();
  ASSERT_TRUE(over.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(told.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_TRUE(call->IsCancelled());
  call->Finish(Bytes(std::string("late")));  // no effect
}

TEST_P(ChannelTest, ACallWhoseStopWasRequestedBeforeNeverBegins) {
  auto link = Serve(PlainEchoService());
  auto channel = link->Connect();
  std::stop_source source;
  source.request_stop();
  EXPECT_THAT(channel->Call(kEcho, Bytes(), {.cancel = source.get_token()}),
              StatusIs(absl::StatusCode::kCancelled));
}

TEST_P(ChannelTest, AStopAfterTheAnswerChangesNothingAndTheHookIsNotRun) {
  DeferredCalls deferred_calls;
  auto link = Serve(DeferringService(&deferred_calls));
  auto channel = link->Connect();
  std::stop_source source;
  absl::Notification over;
  absl::StatusOr<Bytes> answer;
  channel->CallAsync(kEcho, Bytes(), {.cancel = source.get_token()}, [&](absl::StatusOr<Bytes> result) {
    answer = std::move(result);
    over.Notify();
  });
  std::shared_ptr<ServerCall> call = deferred_calls.Take();
  ASSERT_NE(call, nullptr);
  auto alive = std::make_shared<int>();
  std::atomic<bool> told{false};
  call->OnCancel([&told, alive] { told = true; });
  call->Finish(Bytes(std::string("in time")));
  ASSERT_TRUE(over.WaitForNotificationWithTimeout(kTestTimeout));
  source.request_stop();
  TANDEM_ASSERT_OK(answer);
  EXPECT_FALSE(told);
  EXPECT_EQ(alive.use_count(), 1) << "the hook is dropped with the answer";
}

TEST_P(ChannelTest, TheHookRunsWhenTheChannelOfTheCallGoes) {
  DeferredCalls deferred_calls;
  auto link = Serve(DeferringService(&deferred_calls));
  auto channel = link->Connect();
  channel->CallAsync(kEcho, Bytes(), {}, [](absl::StatusOr<Bytes>) {});
  std::shared_ptr<ServerCall> call = deferred_calls.Take();
  ASSERT_NE(call, nullptr);
  absl::Notification told;
  call->OnCancel([&told] { told.Notify(); });
  channel.reset();
  EXPECT_TRUE(told.WaitForNotificationWithTimeout(kTestTimeout));
}

TEST(ChannelCancelTest, ACallThatWaitsForItsNextAttemptIsCancelledAtOnce) {
  std::vector<Service> services = {PlainEchoService()};
  absl::Notification failed;
  auto channel = ConnectLoopback(std::make_shared<const std::vector<Service>>(std::move(services)),
                                 [&failed](absl::string_view, int64_t call) {
                                   if (call == 12)
                                     failed.Notify();  // by now it waits about a second each time
                                   return Fault{.kind = Fault::Kind::kFailBefore};
                                 });
  std::stop_source source;
  absl::Notification over;
  absl::Status status;
  channel->CallAsync(kEcho, Bytes(), {.idempotent = true, .cancel = source.get_token()},
                     [&](absl::StatusOr<Bytes> answer) {
                       status = answer.status();
                       over.Notify();
                     });
  source.request_stop();
  ASSERT_TRUE(over.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_FALSE(failed.HasBeenNotified());
}

}  // namespace
}  // namespace tandem::rpc
