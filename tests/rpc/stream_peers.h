// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_RPC_STREAM_PEERS_H_
#define TANDEM_TESTS_RPC_STREAM_PEERS_H_

// Both ends of /tandem.v1.Data/Stream for tests: Tandem's own with chosen options, and ends whose frames the
// test chooses.

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
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
#include "rpc/wire/frame.h"
#include "tests/rpc/echo_service.h"
#include "tests/rpc/stock_credentials.h"

namespace tandem::rpc::testing {

inline std::unique_ptr<Server> StartServer(Service service, ServerOptions options = {}) {
  auto server = Server::Start(options, {std::move(service)});
  TANDEM_CHECK_MSG(server.ok(), server.status().ToString());
  return *std::move(server);
}

inline std::string TargetOf(const Server& server) { return absl::StrCat("127.0.0.1:", server.port()); }

inline std::unique_ptr<Channel> Connect(const Server& server, ChannelOptions options = {}) {
  auto channel = ConnectGrpc(TargetOf(server), options);
  TANDEM_CHECK_MSG(channel.ok(), channel.status().ToString());
  return *std::move(channel);
}

inline v1::StreamFrame Request(uint64_t call, std::string payload = "", std::string method = kEcho) {
  v1::StreamFrame frame;
  frame.set_call(call);
  frame.set_method(std::move(method));
  frame.set_payload(std::move(payload));
  return frame;
}

// A stream opened by a generic gRPC client. The test chooses every message.
class StockStream {
 public:
  explicit StockStream(const Server& server) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto credentials = StockChannelCredentials(&arguments);
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(TargetOf(server), credentials, arguments));
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kTestTimeout));
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
  // Returns the next frame, or one with call 0 if the stream has ended.
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

// A server of the stream that sends what the test chooses.
class FakeServer {
 public:
  // `response` returns the message to send in reply to the first message of the n-th stream. If it is not
  // set, streams are opened and never read.
  explicit FakeServer(std::function<std::string(int)> response = nullptr) : response_(std::move(response)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", StockServerCredentials(), &port_);
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
          if (response_) stream.stream.Read(&stream.message, &stream);
          break;
        case 1:
          stream.stream.Write(ToByteBuffer(Bytes(response_(answered_++))), &stream);
          break;
      }
    }
  }

  const std::function<std::string(int)> response_;
  int answered_ = 0;
  int port_ = 0;
  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::deque<Stream> streams_;
  std::thread thread_;
};

}  // namespace tandem::rpc::testing

#endif  // TANDEM_TESTS_RPC_STREAM_PEERS_H_
