// SPDX-License-Identifier: Apache-2.0
// Both ends of /tandem.v1.Data/Stream over a real connection. The peer of each sends the frames of the input.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "rpc/channel.h"
#include "rpc/grpc/grpc_bytes.h"
#include "rpc/security/transport_security.h"
#include "rpc/server.h"
#include "rpc/wire/batch.h"
#include "rpc/wire/frame.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/targets.h"
#include "tests/rpc/echo_service.h"

namespace tandem::fuzz {
namespace {

using rpc::testing::kEcho;

// The largest message, at both ends.
constexpr size_t kMaxMessage = 64 << 10;
// A timeout that no input may reach: a target that hangs aborts.
constexpr absl::Duration kTestTimeout = absl::Seconds(60);

// Reads frames, each after its size (u16).
std::vector<std::string> Frames(Input input) {
  ByteSource source(input);
  std::vector<std::string> frames;
  while (!source.Rest().empty() && frames.size() < 64) {
    const size_t size = source.Take<uint16_t>();
    frames.push_back(ToString(source.Take(size)));
  }
  return frames;
}

// Waits for the next operation of a queue with one user. Returns whether it succeeded.
bool Next(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  TANDEM_CHECK(queue->AsyncNext(&tag, &ok, absl::ToChronoTime(absl::Now() + kTestTimeout)) ==
               grpc::CompletionQueue::GOT_EVENT);
  return ok;
}

// Returns whether an operation has ended already; it must have succeeded.
bool TryNext(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  if (queue->AsyncNext(&tag, &ok, absl::ToChronoTime(absl::Now())) != grpc::CompletionQueue::GOT_EVENT)
    return false;
  TANDEM_CHECK(ok);
  return true;
}

// A Tandem server and a plain gRPC client. Never destroyed: gRPC's threads outlive main.
class ServerUnderTest {
 public:
  ServerUnderTest() {
    setenv(rpc::kTrustedNetworkVariable, "1", 1);  // inputs reach the code behind TLS
    auto server = rpc::Server::Start({.listen = "127.0.0.1:0",
                                      .max_message_bytes = kMaxMessage,
                                      .transport = "grpc",
                                      .threads = 1,
                                      .max_held_request_bytes = 2 * kMaxMessage},
                                     {rpc::testing::PlainEchoService()});
    TANDEM_CHECK_MSG(server.ok(), server.status().ToString());
    server_ = *std::move(server);
    const std::string target = absl::StrCat("127.0.0.1:", server_->port());
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
    auto channel = rpc::ConnectGrpc(target);
    TANDEM_CHECK_MSG(channel.ok(), channel.status().ToString());
    good_ = *std::move(channel);
  }

  void Send(const std::vector<std::string>& frames) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kTestTimeout));
    auto stream = stub_->PrepareCall(&context, rpc::kStreamMethod, &queue_);
    stream->StartCall(nullptr);
    bool open = Next(&queue_);
    for (size_t i = 0; open && i < frames.size(); ++i) {
      stream->Write(rpc::ToByteBuffer(Bytes(frames[i])), nullptr);
      open = Next(&queue_);
    }
    if (open) {
      stream->WritesDone(nullptr);
      open = Next(&queue_);
    }
    grpc::ByteBuffer buffer;
    while (stream->Read(&buffer, nullptr), Next(&queue_)) {
      TANDEM_CHECK(rpc::ParseFrames(rpc::FromByteBuffer(buffer)).ok());
    }
    grpc::Status status;
    stream->Finish(&status, nullptr);
    Next(&queue_);
    TANDEM_CHECK_MSG(status.ok() || status.error_code() == grpc::StatusCode::INVALID_ARGUMENT,
                     status.error_message());
    // Other connections are not affected.
    v1::EchoMessage message;
    message.set_text("still there");
    const auto response = good_->Call(kEcho, Bytes(message.SerializeAsString()), {.timeout = kTestTimeout});
    TANDEM_CHECK_MSG(response.ok(), response.status().ToString());
    TANDEM_CHECK(response->Flatten() == message.SerializeAsString());
  }

 private:
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<grpc::GenericStub> stub_;
  std::unique_ptr<rpc::Channel> good_;
  grpc::CompletionQueue queue_;
};

// A Tandem channel, and a server whose responses the test determines. Never destroyed, as above.
class ClientUnderTest {
 public:
  ClientUnderTest() {
    setenv(rpc::kTrustedNetworkVariable, "1", 1);  // inputs reach the code behind TLS
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterAsyncGenericService(&service_);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    auto channel = rpc::ConnectGrpc(absl::StrCat("127.0.0.1:", port), {.max_message_bytes = kMaxMessage});
    TANDEM_CHECK_MSG(channel.ok(), channel.status().ToString());
    channel_ = *std::move(channel);
    Accept();
  }

  // `end`: the status code with which the stream ends.
  void Respond(const std::vector<std::string>& frames, grpc::StatusCode end) {
    constexpr int kCalls = 3;
    // The calls of the last round that have not ended. Calls that were still sent on a stream whose end the
    // client had not seen yet end with it, and no stream is opened for them. There is another round then.
    absl::Mutex mutex;
    int under_way = 0;
    const auto over = [&under_way] { return under_way == 0; };
    bool accepted = false;
    for (const absl::Time give_up = absl::Now() + kTestTimeout; !accepted;) {
      TANDEM_CHECK(absl::Now() < give_up);
      {
        absl::MutexLock lock(&mutex);
        under_way = kCalls;
      }
      for (int i = 0; i < kCalls; ++i) {
        channel_->CallAsync(kEcho, Bytes(std::string("question")), {.timeout = kTestTimeout},
                            [&](absl::StatusOr<Bytes> response) {
                              if (response.ok()) TANDEM_CHECK(response->size() <= kMaxMessage);
                              absl::MutexLock lock(&mutex);
                              TANDEM_CHECK(--under_way >= 0);  // each call ends once
                            });
      }
      for (bool all_over = false; !accepted && !all_over;) {
        absl::MutexLock lock(&mutex);
        all_over = mutex.AwaitWithTimeout(absl::Condition(&over), absl::Milliseconds(1));
        accepted = TryNext(queue_.get());
      }
    }
    grpc::ByteBuffer question;
    peer_->stream.Read(&question, nullptr);
    bool open = Next(queue_.get());
    for (size_t i = 0; open && i < frames.size(); ++i) {
      peer_->stream.Write(rpc::ToByteBuffer(Bytes(frames[i])), nullptr);
      open = Next(queue_.get());
    }
    peer_->stream.Finish(grpc::Status(end, "that is all"), nullptr);
    Next(queue_.get());
    {
      absl::MutexLock lock(&mutex);
      TANDEM_CHECK(mutex.AwaitWithTimeout(absl::Condition(&over), 2 * kTestTimeout));
    }
    Accept();
  }

 private:
  struct Peer {
    Peer() : stream(&context) {}
    grpc::GenericServerContext context;
    grpc::GenericServerAsyncReaderWriter stream;
  };
  void Accept() {
    peer_.emplace();
    service_.RequestCall(&peer_->context, &peer_->stream, queue_.get(), queue_.get(), nullptr);
  }

  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::optional<Peer> peer_;
  std::unique_ptr<rpc::Channel> channel_;
};

}  // namespace

// Input: frames of a client.
void FuzzStreamServer(Input input) {
  static auto* const server = new ServerUnderTest;
  server->Send(Frames(input));
}

// Input: u8 how the stream ends, then frames of a server whose client has made calls 1 to 3.
void FuzzStreamClient(Input input) {
  static auto* const client = new ClientUnderTest;
  static constexpr grpc::StatusCode kEnds[] = {grpc::StatusCode::OK, grpc::StatusCode::UNAVAILABLE,
                                               grpc::StatusCode::INVALID_ARGUMENT,
                                               grpc::StatusCode::INTERNAL};
  ByteSource source(input);
  const grpc::StatusCode end = kEnds[source.Take<uint8_t>() % 4];
  client->Respond(Frames(source.Rest()), end);
}

}  // namespace tandem::fuzz
