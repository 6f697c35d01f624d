// /tandem.v1.Data/Stream itself: what its server does with frames that no client of ours sends, and with
// clients and servers that are slow.

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <stop_token>
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
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "rpc/channel.h"
#include "rpc/grpc/grpc_bytes.h"
#include "rpc/server.h"
#include "rpc/stream/frame.h"
#include "tests/rpc/echo_service.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using testing::EchoService;
using ::testing::HasSubstr;
using testing::kEcho;
using testing::kPatience;
using testing::ParkingLot;
using testing::ParkingService;
using testing::Pattern;
using testing::PlainEchoService;

std::unique_ptr<Server> StartServer(Service service, ServerOptions options = {}) {
  auto server = Server::Start(options, {std::move(service)});
  TANDEM_CHECK_MSG(server.ok(), server.status().ToString());
  return *std::move(server);
}

std::string TargetOf(const Server& server) { return absl::StrCat("127.0.0.1:", server.port()); }

std::unique_ptr<Channel> Connect(const Server& server, ChannelOptions options = {}) {
  auto channel = ConnectGrpc(TargetOf(server), options);
  TANDEM_CHECK_MSG(channel.ok(), channel.status().ToString());
  return *std::move(channel);
}

v1::StreamFrame Request(uint64_t call, std::string payload = "", std::string method = kEcho) {
  v1::StreamFrame frame;
  frame.set_call(call);
  frame.set_method(std::move(method));
  frame.set_payload(std::move(payload));
  return frame;
}

// The stream as a stock client opens it: every message goes as the test says.
class StockStream {
 public:
  explicit StockStream(const Server& server) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(TargetOf(server), grpc::InsecureChannelCredentials(), arguments));
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    stream_ = stub_->PrepareCall(&context_, kStreamMethod, &queue_);
    stream_->StartCall(nullptr);
    Next();
  }
  ~StockStream() {
    context_.TryCancel();
    if (!ended_) End();
  }

  bool WriteRaw(const std::string& message) {
    stream_->Write(ToByteBuffer(Bytes(message)), nullptr);
    return Next();
  }
  bool Write(const v1::StreamFrame& frame) { return WriteRaw(frame.SerializeAsString()); }
  void HalfClose() {
    stream_->WritesDone(nullptr);
    Next();
  }
  // The next frame; call 0 when there is none any more.
  v1::StreamFrame Read() {
    grpc::ByteBuffer buffer;
    stream_->Read(&buffer, nullptr);
    v1::StreamFrame frame;
    if (Next()) TANDEM_CHECK(frame.ParseFromString(FromByteBuffer(buffer).Flatten()));
    return frame;
  }
  grpc::Status End() {
    grpc::Status status;
    stream_->Finish(&status, nullptr);
    Next();
    ended_ = true;
    return status;
  }
  void Cancel() { context_.TryCancel(); }

 private:
  bool Next() {
    void* tag;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  std::unique_ptr<grpc::GenericStub> stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  bool ended_ = false;
};

// Reads frames to the end; the answers among them by call.
std::string ReadToEnd(StockStream* stream) {
  std::string calls;
  for (v1::StreamFrame frame = stream->Read(); frame.call() != 0; frame = stream->Read()) {
    absl::StrAppend(&calls, frame.call(), " ");
  }
  return calls;
}

TEST(StreamTest, AStockClientGetsAnswersToFrames) {
  auto server = StartServer(PlainEchoService());
  StockStream stream(*server);
  ASSERT_TRUE(stream.Write(Request(1, "\x0a\x03one")));
  v1::StreamFrame answer = stream.Read();
  EXPECT_EQ(answer.call(), 1);
  EXPECT_EQ(answer.code(), 0);
  EXPECT_EQ(answer.payload(), "\x0a\x03one");
  ASSERT_TRUE(stream.Write(Request(5, "", "/tandem.v1.Echo/Shout")));
  answer = stream.Read();
  EXPECT_EQ(answer.call(), 5);
  EXPECT_EQ(answer.code(), static_cast<uint32_t>(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(answer.error(), HasSubstr("/tandem.v1.Echo/Shout"));
}

TEST(StreamTest, CallsBegunBeforeAHalfCloseAreAnswered) {
  ParkingLot lot;
  auto server = StartServer(ParkingService(&lot));
  StockStream stream(*server);
  ASSERT_TRUE(stream.Write(Request(1, "late")));
  auto call = lot.Take();
  ASSERT_NE(call, nullptr);
  stream.HalfClose();
  call->Finish(call->request());
  EXPECT_EQ(stream.Read().payload(), "late");
  EXPECT_EQ(stream.Read().call(), 0);
  EXPECT_TRUE(stream.End().ok());
}

// What breaks the rules ends the stream with a reason, and nothing else.
TEST(StreamTest, BrokenFramesEndTheirStreamWithTheReason) {
  auto server = StartServer(PlainEchoService());
  auto bystander = Connect(*server);
  const auto end_of = [&](const std::vector<std::string>& messages) {
    StockStream stream(*server);
    for (const std::string& message : messages) {
      if (!stream.WriteRaw(message)) break;
    }
    ReadToEnd(&stream);
    const grpc::Status end = stream.End();
    TANDEM_EXPECT_OK(bystander->Call(kEcho, Bytes(), {}));
    return absl::StrCat(end.error_code(), " ", end.error_message());
  };
  const std::string invalid = absl::StrCat(grpc::StatusCode::INVALID_ARGUMENT, " ");
  const auto text = [](const v1::StreamFrame& frame) { return frame.SerializeAsString(); };

  EXPECT_THAT(end_of({"\xff\xff\xff garbage"}), AllOf(HasSubstr(invalid), HasSubstr("malformed")));
  EXPECT_THAT(end_of({""}), AllOf(HasSubstr(invalid), HasSubstr("numbered from 1")));
  EXPECT_THAT(end_of({text(Request(4)), text(Request(4))}),
              AllOf(HasSubstr(invalid), HasSubstr("begins after call 4")));
  EXPECT_THAT(end_of({text(Request(4)), text(Request(3))}),
              AllOf(HasSubstr(invalid), HasSubstr("begins after call 4")));
  EXPECT_THAT(end_of({text(Request(9, "", ""))}), AllOf(HasSubstr(invalid), HasSubstr("never began")));
  EXPECT_THAT(end_of({text(Request(1, std::string(kMaxFramePayload + 1, 'x')))}),
              AllOf(HasSubstr(invalid), HasSubstr("a frame's may have 2097152")));
  v1::StreamFrame first = Request(1, "1234");
  first.set_message_bytes(6);
  v1::StreamFrame rest;
  rest.set_call(1);
  EXPECT_THAT(end_of({text(first), text(rest)}), AllOf(HasSubstr(invalid), HasSubstr("is empty")));
  rest.set_payload("567");
  EXPECT_THAT(end_of({text(first), text(rest)}), AllOf(HasSubstr(invalid), HasSubstr("it was to have 6")));
}

TEST(StreamTest, GarbageNeverHurtsTheServer) {
  std::atomic<int> calls{0};
  auto server = StartServer(EchoService([&calls](std::shared_ptr<ServerCall> call) {
    ++calls;
    call->Finish(call->request());
  }));
  auto bystander = Connect(*server);
  std::mt19937 random(3);
  for (int i = 0; i < 60; ++i) {
    StockStream stream(*server);
    uint64_t call = 0;
    for (int n = 0; n < 8; ++n) {
      v1::StreamFrame frame = Request(++call, std::string(random() % 3000, 'x'));
      if (random() % 3 == 0) frame.set_message_bytes(random());
      if (random() % 4 == 0) frame.clear_method();
      std::string text = frame.SerializeAsString();
      for (int c = random() % 3; c > 0; --c) text[random() % text.size()] = static_cast<char>(random());
      if (random() % 3 == 0) text.resize(random() % text.size());
      if (!stream.WriteRaw(text)) break;
    }
    if (random() % 2 == 0) stream.HalfClose();
    if (random() % 4 != 0) stream.Cancel();
  }
  TANDEM_EXPECT_OK(bystander->Call(kEcho, Bytes(), {}));
  EXPECT_GT(calls, 1);
}

TEST(StreamTest, ARequestThatIsCutOffReachesNoHandler) {
  std::atomic<int> calls{0};
  auto server = StartServer(EchoService([&calls](std::shared_ptr<ServerCall> call) {
    ++calls;
    call->Finish(Bytes());
  }));
  StockStream stream(*server);
  v1::StreamFrame frame = Request(1, "half of it");
  frame.set_message_bytes(20);
  ASSERT_TRUE(stream.Write(frame));
  stream.HalfClose();
  EXPECT_EQ(ReadToEnd(&stream), "");
  EXPECT_TRUE(stream.End().ok());
  EXPECT_EQ(calls, 0);
}

TEST(StreamTest, ARequestThatIsTooLargeIsRefusedAndTheStreamGoesOn) {
  auto server = StartServer(PlainEchoService(), {.max_message_bytes = 1000});
  StockStream stream(*server);
  v1::StreamFrame frame = Request(1, std::string(600, 'x'));
  frame.set_message_bytes(1800);
  ASSERT_TRUE(stream.Write(frame));
  v1::StreamFrame answer = stream.Read();
  EXPECT_EQ(answer.call(), 1);
  EXPECT_EQ(answer.code(), static_cast<uint32_t>(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(answer.error(), AllOf(HasSubstr("1800 bytes"), HasSubstr("max_message_bytes")));
  for (int i = 0; i < 2; ++i) {  // its rest, which was on its way
    frame = v1::StreamFrame();
    frame.set_call(1);
    frame.set_payload(std::string(600, 'x'));
    ASSERT_TRUE(stream.Write(frame));
  }
  ASSERT_TRUE(stream.Write(Request(2)));
  EXPECT_EQ(stream.Read().call(), 2);
}

TEST(StreamTest, ACancelledCallIsForgotten) {
  ParkingLot lot;
  auto server = StartServer(ParkingService(&lot));
  StockStream stream(*server);
  ASSERT_TRUE(stream.Write(Request(1)));
  auto call = lot.Take();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->deadline(), absl::InfiniteFuture());
  EXPECT_FALSE(call->IsCancelled());
  v1::StreamFrame cancel;
  cancel.set_call(1);
  cancel.set_cancel(true);
  ASSERT_TRUE(stream.Write(cancel));
  ASSERT_TRUE(stream.Write(cancel));  // again: nothing happens
  ASSERT_TRUE(stream.Write(Request(2)));
  auto next = lot.Take();  // comes after the cancellation
  ASSERT_NE(next, nullptr);
  EXPECT_TRUE(call->IsCancelled());
  EXPECT_FALSE(next->IsCancelled());
  call->Finish(Bytes(std::string("late")));
  next->Finish(Bytes(std::string("in time")));
  const v1::StreamFrame answer = stream.Read();
  EXPECT_EQ(answer.call(), 2);
  EXPECT_EQ(answer.payload(), "in time");
}

TEST(StreamTest, ASmallAnswerDoesNotWaitForALargeOne) {
  auto server =
      StartServer(EchoService([](std::shared_ptr<ServerCall> call) {
                    call->Finish(Bytes(std::string(call->request().size() > 0 ? size_t{32} << 20 : 1, 'a')));
                  }),
                  {.threads = 1});
  StockStream stream(*server);
  ASSERT_TRUE(stream.Write(Request(1, "large")));
  ASSERT_TRUE(stream.Write(Request(2)));
  size_t large = 0;
  for (v1::StreamFrame frame = stream.Read(); frame.call() == 1; frame = stream.Read())
    large += frame.payload().size();
  EXPECT_LT(large, size_t{16} << 20);
}

// A client that does not read its answers: its requests are left unread, and memory stays bounded.
TEST(StreamTest, AClientThatDoesNotReadIsNotServedAnyFurther) {
  std::atomic<int> served{0};
  constexpr size_t kAnswer = size_t{256} << 10;
  const auto rows = std::make_shared<std::string>(kAnswer, 'r');
  auto server = StartServer(EchoService([&](std::shared_ptr<ServerCall> call) {
                              if (call->request().empty()) return call->Finish(Bytes());  // a bystander
                              ++served;
                              call->Finish(Bytes(Slice(rows, rows->data(), rows->size())));
                            }),
                            {.threads = 1, .max_unsent_answer_bytes = size_t{4} << 20});
  constexpr int kCalls = 400;  // 100 MiB of answers
  StockStream stream(*server);
  for (int i = 1; i <= kCalls; ++i) ASSERT_TRUE(stream.Write(Request(i, "rows")));
  // Meanwhile others are served, by the same thread: it has had its chance to serve the silent one.
  auto bystander = Connect(*server);
  for (int i = 0; i < 200; ++i) TANDEM_ASSERT_OK(bystander->Call(kEcho, Bytes(), {}));
  // The limit, one answer past it, and what the network takes.
  EXPECT_GE(served, (4 << 20) / static_cast<int>(kAnswer));
  EXPECT_LT(served, kCalls / 4);
  for (int i = 0; i < kCalls; ++i) ASSERT_EQ(stream.Read().payload().size(), kAnswer);
  EXPECT_EQ(served, kCalls);
}

TEST(StreamTest, RequestsThatHandlersKeepAreBounded) {
  ParkingLot lot;
  auto server = StartServer(ParkingService(&lot), {.max_held_request_bytes = 1 << 20});
  auto channel = Connect(*server);
  const Bytes request(std::string(300 << 10, 'x'));
  absl::Mutex mutex;
  std::vector<absl::Status> ends;
  const auto call = [&] {
    channel->CallAsync(kEcho, request, {.timeout = kPatience}, [&](absl::StatusOr<Bytes> answer) {
      absl::MutexLock lock(&mutex);
      ends.push_back(answer.status());
    });
  };
  const auto await = [&](size_t count) {
    absl::MutexLock lock(&mutex);
    const auto enough = [&] { return ends.size() >= count; };
    return mutex.AwaitWithTimeout(absl::Condition(&enough), kPatience);
  };
  for (int i = 0; i < 5; ++i) call();
  ASSERT_TRUE(await(2));
  for (const absl::Status& end : ends) {
    EXPECT_THAT(end, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_held_request_bytes")));
  }
  for (int i = 0; i < 3; ++i) {
    auto parked = lot.Take();
    ASSERT_NE(parked, nullptr);
    parked->Finish(Bytes());
  }
  ASSERT_TRUE(await(5));
  call();  // there is room again
  auto parked = lot.Take();
  ASSERT_NE(parked, nullptr);
  parked->Finish(Bytes());
  parked.reset();
  ASSERT_TRUE(await(6));
  channel.reset();
  EXPECT_EQ(std::count_if(ends.begin(), ends.end(), [](const absl::Status& end) { return end.ok(); }), 4);
}

TEST(StreamTest, RequestsThatAClientKeepsAreBounded) {
  ParkingLot lot;
  auto server = StartServer(ParkingService(&lot));
  auto channel = Connect(*server, {.max_outstanding_bytes = 1 << 20});
  absl::Notification first;
  // A single call may pass the limit.
  channel->CallAsync(kEcho, Bytes(std::string(2 << 20, 'x')), {}, [&](absl::StatusOr<Bytes> answer) {
    TANDEM_EXPECT_OK(answer);
    first.Notify();
  });
  auto parked = lot.Take();
  ASSERT_NE(parked, nullptr);
  EXPECT_THAT(
      channel->Call(kEcho, Bytes(std::string("x")), {}),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("ChannelOptions::max_outstanding_bytes"), HasSubstr("2097152 bytes"))));
  parked->Finish(Bytes());
  ASSERT_TRUE(first.WaitForNotificationWithTimeout(kPatience));
  absl::Notification second;
  channel->CallAsync(kEcho, Bytes(std::string("x")), {}, [&](absl::StatusOr<Bytes> answer) {
    TANDEM_EXPECT_OK(answer);
    second.Notify();
  });
  parked = lot.Take();
  ASSERT_NE(parked, nullptr);
  parked->Finish(Bytes());
  EXPECT_TRUE(second.WaitForNotificationWithTimeout(kPatience));
}

// A server of our stream that does as the test says.
class FakeServer {
 public:
  // `answer`: what to send for the n-th stream's first message. Without one, the stream is opened and never
  // read.
  explicit FakeServer(std::function<std::string(int)> answer = nullptr) : answer_(std::move(answer)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterAsyncGenericService(&service_);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakeServer() {
    server_->Shutdown(absl::ToChronoTime(absl::Now()));
    queue_->Shutdown();
    thread_.join();
  }
  std::string target() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  struct Stream {
    grpc::GenericServerContext context;
    grpc::GenericServerAsyncReaderWriter stream{&context};
    grpc::ByteBuffer message;
    int state = 0;
  };
  void Accept() {
    Stream& stream = streams_.emplace_back();
    service_.RequestCall(&stream.context, &stream.stream, queue_.get(), queue_.get(), &stream);
  }
  void Serve() {
    Accept();
    void* tag;
    bool ok;
    while (queue_->Next(&tag, &ok)) {
      if (!ok) continue;
      Stream& stream = *static_cast<Stream*>(tag);
      switch (stream.state++) {
        case 0:
          Accept();
          if (answer_) stream.stream.Read(&stream.message, &stream);
          break;
        case 1:
          stream.stream.Write(ToByteBuffer(Bytes(answer_(answered_++))), &stream);
          break;
      }
    }
  }

  const std::function<std::string(int)> answer_;
  int answered_ = 0;
  int port_ = 0;
  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::deque<Stream> streams_;
  std::thread thread_;
};

TEST(StreamTest, AServerThatSendsNonsenseIsNamedAndTheNextCallOpensAnotherStream) {
  v1::StreamFrame good;
  good.set_call(1);
  good.set_payload("at last");
  v1::StreamFrame stray;
  stray.set_call(77);
  v1::StreamFrame large;
  large.set_call(1);
  large.set_message_bytes(uint64_t{1} << 40);
  const std::vector<std::string> answers = {"\xff\xff nonsense", stray.SerializeAsString(),
                                            large.SerializeAsString(), good.SerializeAsString()};
  FakeServer server([&](int n) { return answers[n]; });
  auto connected = ConnectGrpc(server.target());
  TANDEM_ASSERT_OK(connected);
  Channel& channel = **connected;
  EXPECT_THAT(
      channel.Call(kEcho, Bytes(), {}),
      StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr("broken stream"), HasSubstr("malformed"))));
  EXPECT_THAT(channel.Call(kEcho, Bytes(), {}), StatusIs(absl::StatusCode::kInternal, HasSubstr("call 77")));
  EXPECT_THAT(channel.Call(kEcho, Bytes(), {}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1099511627776 bytes")));
  connected->reset();
  auto again = ConnectGrpc(server.target());
  TANDEM_ASSERT_OK(again);
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes answer, (*again)->Call(kEcho, Bytes(), {}));
  EXPECT_EQ(answer.Flatten(), "at last");
}

TEST(StreamTest, CallsThatAServerDoesNotReadEndAtTheirDeadline) {
  FakeServer server;
  auto connected = ConnectGrpc(server.target());
  TANDEM_ASSERT_OK(connected);
  absl::Mutex mutex;
  std::vector<absl::Status> ends;
  constexpr int kCalls = 16;
  for (int i = 0; i < kCalls; ++i) {
    (*connected)
        ->CallAsync(kEcho, Bytes(std::string(4 << 20, 'x')), {.timeout = absl::Seconds(1)},
                    [&](absl::StatusOr<Bytes> answer) {
                      absl::MutexLock lock(&mutex);
                      ends.push_back(answer.status());
                    });
  }
  {
    absl::MutexLock lock(&mutex);
    const auto all = [&] { return ends.size() == kCalls; };
    ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&all), kPatience));
    for (const absl::Status& end : ends) {
      EXPECT_THAT(end, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(kEcho)));
    }
    EXPECT_THAT(ends.back(),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("bytes waited for the connection")));
  }
}

TEST(StreamTest, MessagesOfAllSizesTravelTogether) {
  auto server =
      StartServer(EchoService([](std::shared_ptr<ServerCall> call) { call->Finish(call->request()); }));
  auto channel = Connect(*server);
  std::mt19937 random(5);
  const std::string pattern = Pattern(5 << 20);
  constexpr int kCalls = 150;
  std::atomic<int> right{0};
  std::atomic<int> over{0};
  absl::Notification all;
  for (int i = 0; i < kCalls; ++i) {
    const size_t size = i % 3 == 0 ? random() % (5 << 20) : random() % 5000;
    const size_t offset = random() % (pattern.size() - size);
    const absl::string_view sent = absl::string_view(pattern).substr(offset, size);
    channel->CallAsync(kEcho, Bytes(std::string(sent)), {.timeout = kPatience},
                       [&, sent](absl::StatusOr<Bytes> answer) {
                         if (answer.ok() && answer->Flatten() == sent) ++right;
                         if (++over == kCalls) all.Notify();
                       });
  }
  ASSERT_TRUE(all.WaitForNotificationWithTimeout(2 * kPatience));
  EXPECT_EQ(right, kCalls);
}

// One connection that sends as fast as it can takes turns with another, message by message.
TEST(StreamTest, ABusyConnectionDoesNotStarveAnother) {
  auto server = StartServer(EchoService([](std::shared_ptr<ServerCall> call) { call->Finish(Bytes()); }),
                            {.threads = 1});
  auto busy = Connect(*server);
  auto quiet = Connect(*server);
  TANDEM_ASSERT_OK(quiet->Call(kEcho, Bytes(), {}));
  constexpr int kInFlight = 256;
  const auto rows = std::make_shared<std::string>(256 << 10, 'x');
  std::atomic<bool> stop{false};
  std::atomic<int> pushed{0};
  // A pointer of their own: the answers that come while the channel goes still look at it.
  std::function<void()> push = [&, channel = busy.get()] {
    channel->CallAsync(kEcho, Bytes(Slice(rows, rows->data(), rows->size())), {},
                       [&](absl::StatusOr<Bytes> answer) {
                         ++pushed;
                         if (answer.ok() && !stop) push();
                       });
  };
  for (int i = 0; i < kInFlight; ++i) push();
  constexpr int kPings = 40;
  const int before = pushed;
  for (int i = 0; i < kPings; ++i) TANDEM_ASSERT_OK(quiet->Call(kEcho, Bytes(), {}));
  const int meanwhile = pushed - before;
  stop = true;
  busy.reset();
  // Behind all that the other has sent it would be kInFlight each time.
  EXPECT_LT(meanwhile / kPings, kInFlight / 2);
}

// Puts an answer together, and says how it came.
class Collector : public AnswerSink {
 public:
  void OnPiece(uint64_t offset, uint64_t total, Bytes piece) override {
    absl::MutexLock lock(&mutex_);
    if (offset == 0) text_.clear();
    EXPECT_EQ(offset, text_.size());
    EXPECT_LE(offset + piece.size(), total);
    text_ += piece.Flatten();
    ++pieces_;
  }
  std::string text() const {
    absl::MutexLock lock(&mutex_);
    return text_;
  }
  int pieces() const {
    absl::MutexLock lock(&mutex_);
    return pieces_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::string text_;
  int pieces_ = 0;
};

// An answer of a pattern that is made piece by piece; counts the pieces.
class PatternAnswer : public AnswerSource {
 public:
  PatternAnswer(std::string text, std::atomic<int>* made) : text_(std::move(text)), made_(made) {}
  size_t size() const override { return text_.size(); }
  Bytes Next(size_t limit) override {
    ++*made_;
    std::string piece = text_.substr(at_, limit);
    at_ += piece.size();
    return Bytes(std::move(piece));
  }

 private:
  const std::string text_;
  std::atomic<int>* const made_;
  size_t at_ = 0;
};

TEST(StreamTest, ALongAnswerIsMadeAndUsedPieceByPiece) {
  const std::string text = Pattern(5 * kFramePayload + 99);
  std::atomic<int> made{0};
  auto server = StartServer(EchoService([&](std::shared_ptr<ServerCall> call) {
    call->FinishInPieces(std::make_unique<PatternAnswer>(text, &made));
  }));
  auto channel = Connect(*server);
  auto sink = std::make_shared<Collector>();
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes rest, channel->Call(kEcho, Bytes(), {.sink = sink}));
  EXPECT_TRUE(rest.empty());
  EXPECT_TRUE(sink->text() == text);
  EXPECT_EQ(sink->pieces(), 5);
  EXPECT_EQ(made, 5);
  // Whoever does not ask for pieces, or calls without the stream, gets the whole.
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes whole, channel->Call(kEcho, Bytes(), {}));
  EXPECT_TRUE(whole.Flatten() == text);
  auto unary = Connect(*server, {.stream = false});
  auto unused = std::make_shared<Collector>();
  TANDEM_ASSERT_OK_AND_ASSIGN(whole, unary->Call(kEcho, Bytes(), {.sink = unused}));
  EXPECT_TRUE(whole.Flatten() == text);
  EXPECT_EQ(unused->pieces(), 0);
}

TEST(StreamTest, TheRestOfACancelledAnswerIsNotMade) {
  constexpr int kPieces = 512;  // beyond what sockets and windows hold
  std::atomic<int> made{0};
  auto server = StartServer(EchoService([&](std::shared_ptr<ServerCall> call) {
    call->FinishInPieces(
        std::make_unique<PatternAnswer>(std::string(size_t{kPieces} * kFramePayload, 'x'), &made));
  }));
  StockStream stream(*server);
  ASSERT_TRUE(stream.Write(Request(1)));
  const v1::StreamFrame first = stream.Read();
  EXPECT_EQ(first.message_bytes(), size_t{kPieces} * kFramePayload);
  EXPECT_EQ(first.payload().size(), kFramePayload);
  v1::StreamFrame cancel;
  cancel.set_call(1);
  cancel.set_cancel(true);
  ASSERT_TRUE(stream.Write(cancel));
  ASSERT_TRUE(stream.Write(Request(2, "", "/tandem.v1.Echo/Shout")));
  v1::StreamFrame frame = stream.Read();
  while (frame.call() == 1) frame = stream.Read();
  EXPECT_EQ(frame.call(), 2);
  EXPECT_LT(made, kPieces);
}

// A pull's rows belong to its caller again once it has ended.
TEST(StreamTest, NoPieceComesOnceTheCallHasEnded) {
  const std::string text = Pattern(64 * kFramePayload);
  std::atomic<int> made{0};
  auto server = StartServer(EchoService([&](std::shared_ptr<ServerCall> call) {
    call->FinishInPieces(std::make_unique<PatternAnswer>(text, &made));
  }));
  auto channel = Connect(*server);
  class Guard : public AnswerSink {
   public:
    void OnPiece(uint64_t offset, uint64_t total, Bytes piece) override {
      EXPECT_FALSE(over.load());
      ++pieces;
    }
    std::atomic<bool> over{false};
    std::atomic<int> pieces{0};
  };
  for (int i = 0; i < 20; ++i) {
    auto sink = std::make_shared<Guard>();
    std::stop_source outside;
    absl::Notification over;
    channel->CallAsync(kEcho, Bytes(), {.cancel = outside.get_token(), .sink = sink},
                       [&](absl::StatusOr<Bytes>) {
                         sink->over = true;
                         over.Notify();
                       });
    while (sink->pieces < i % 4 && !over.HasBeenNotified()) std::this_thread::yield();
    outside.request_stop();
    ASSERT_TRUE(over.WaitForNotificationWithTimeout(kPatience));
  }
  // And the stream goes on.
  TANDEM_ASSERT_OK_AND_ASSIGN(Bytes whole, channel->Call(kEcho, Bytes(), {}));
  EXPECT_TRUE(whole.Flatten() == text);
}

// Threads that wait take turns at receiving; calls that nobody waits for are answered all the same.
TEST(StreamTest, BlockingAndOtherCallsShareAChannel) {
  auto server = StartServer(PlainEchoService());
  auto channel = Connect(*server);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const std::string text = "\x0a\x03" + absl::StrCat(100 + t);
        const absl::StatusOr<Bytes> answer = channel->Call(kEcho, Bytes(text), {.timeout = kPatience});
        if (!answer.ok() || answer->Flatten() != text) ++wrong;
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    absl::Notification over;
    channel->CallAsync(kEcho, Bytes(), {.timeout = kPatience}, [&](absl::StatusOr<Bytes> answer) {
      if (!answer.ok()) ++wrong;
      over.Notify();
    });
    ASSERT_TRUE(over.WaitForNotificationWithTimeout(kPatience));
  }
  for (std::thread& thread : threads) thread.join();
  // One thread alone, which comes to receive for itself, then none.
  for (int i = 0; i < 200; ++i) {
    const absl::StatusOr<Bytes> answer = channel->Call(kEcho, Bytes(), {.timeout = kPatience});
    if (!answer.ok()) ++wrong;
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tandem::rpc
