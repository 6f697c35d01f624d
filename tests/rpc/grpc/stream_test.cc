// /tandem.v1.Data/Stream itself: what its server does with frames that no client of ours sends, and with clients and
// servers that are slow.

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <random>
#include <string>
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
  EXPECT_THAT(end_of({text(Request(4)), text(Request(4))}), AllOf(HasSubstr(invalid), HasSubstr("begins after call 4")));
  EXPECT_THAT(end_of({text(Request(4)), text(Request(3))}), AllOf(HasSubstr(invalid), HasSubstr("begins after call 4")));
  EXPECT_THAT(end_of({text(Request(9, "", ""))}), AllOf(HasSubstr(invalid), HasSubstr("never began")));
  EXPECT_THAT(end_of({text(Request(1, std::string(kMaxFramePayload + 1, 'x')))}),
              AllOf(HasSubstr(invalid), HasSubstr("at most"), HasSubstr("2097152")) ,
              ) << "placeholder";
}

}  // namespace
}  // namespace tandem::rpc
