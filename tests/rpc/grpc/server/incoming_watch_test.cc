// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/server/incoming_watch.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <string>

#include "tests/rpc/stream_peers.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

constexpr size_t kOneKiB = 1024;
constexpr size_t kOneMiB = kOneKiB * kOneKiB;

// A TCP connection of this process with itself, whose server end is watched. Nothing reads what has arrived
// at the HTTP/2 level, as gRPC reads an incomplete message.
class WatchedPair {
 public:
  explicit WatchedPair(ConnectionLimit* limit) {
    const ipc::Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    client_ = ipc::Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(client_.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    server_ = ipc::Descriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(server_.valid());
    limit->AddConnection(server_.get());
  }
  int server() const { return server_.get(); }
  // Sends `bytes` bytes and reads them at the other end. Returns false if the connection was closed
  // meanwhile.
  bool Transfer(size_t bytes) {
    const std::string part(16 * kOneKiB, 'x');
    std::string got(part.size(), 0);
    while (bytes > 0) {
      const size_t now = std::min(bytes, part.size());
      if (::send(client_.get(), part.data(), now, MSG_NOSIGNAL) != static_cast<ssize_t>(now) ||
          ::recv(server_.get(), got.data(), now, MSG_WAITALL) != static_cast<ssize_t>(now)) {
        return false;
      }
      bytes -= now;
    }
    return true;
  }
  bool AwaitClosed() const {
    pollfd one = {client_.get(), POLLIN, 0};
    char byte;
    return ::poll(&one, 1, 30'000) == 1 && ::recv(client_.get(), &byte, 1, 0) <= 0;
  }
  bool IsOpen() const {
    char byte;
    return ::recv(client_.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
  }

 private:
  ipc::Descriptor client_, server_;
};

class IncomingWatchTest : public ::testing::Test {
 protected:
  void Watch(IncomingWatch::Options options) {
    options.server = "here";
    options.interval = absl::Milliseconds(5);
    watch_ = std::make_unique<IncomingWatch>(std::move(options), limit_);
  }
  std::shared_ptr<RequestMemory> memory_ = std::make_shared<RequestMemory>(kOneMiB, kOneMiB, kOneMiB);
  std::shared_ptr<ConnectionLimit> limit_ =
      std::make_shared<ConnectionLimit>("here", 100, /*tls=*/false, memory_);
  std::unique_ptr<IncomingWatch> watch_;
};

TEST_F(IncomingWatchTest, TheConnectionsWithTheMostIncompleteBytesAreClosed) {
  WatchedPair small(limit_.get()), large(limit_.get()), larger(limit_.get());
  EXPECT_TRUE(small.Transfer(300 * kOneKiB));
  EXPECT_TRUE(large.Transfer(500 * kOneKiB));
  EXPECT_TRUE(larger.Transfer(600 * kOneKiB));
  Watch({.max_bytes = kOneMiB});
  EXPECT_TRUE(larger.AwaitClosed());
  EXPECT_TRUE(small.IsOpen());
  EXPECT_TRUE(large.IsOpen());
  WatchedPair another(limit_.get());
  EXPECT_TRUE(another.Transfer(450 * kOneKiB));
  EXPECT_TRUE(large.AwaitClosed());
  EXPECT_TRUE(small.IsOpen());
  EXPECT_TRUE(another.IsOpen());
}

TEST_F(IncomingWatchTest, AConnectionWithoutACallMaySendAsMuchAsOneCallHas) {
  WatchedPair speaks(limit_.get()), headers(limit_.get());
  memory_->OfSocket(speaks.server())->NoteHandled(100);
  Watch({.first_call = absl::ZeroDuration()});
  EXPECT_TRUE(speaks.Transfer(6 * kOneMiB));
  EXPECT_TRUE(headers.Transfer(4 * kOneMiB));
  EXPECT_TRUE(headers.IsOpen());
  headers.Transfer(2 * kOneMiB);
  EXPECT_TRUE(headers.AwaitClosed());
  EXPECT_TRUE(speaks.IsOpen());
}

// If what is no message were counted as one, long-lived connections would be closed some day. The connections
// use TLS, whose records add to what arrives.
TEST_F(IncomingWatchTest, CompleteCallsOfAnyKindLeaveNothingIncomplete) {
  auto server = testing::StartServer(testing::PlainEchoService(),
                                     {.transport = "grpc", .max_incomplete_bytes = 6 * kOneMiB});
  auto stream = testing::Connect(*server), unary = testing::Connect(*server, {.stream = false});
  const auto call = [](Channel& channel, size_t size) {
    TANDEM_ASSERT_OK(
        channel.Call(testing::kEcho, EncodeBulk(v1::EchoMessage(), Bytes(std::string(size, 'x'))), {})
            .status());
  };
  for (int i = 0; i < 200; ++i) {
    call(*stream, kOneMiB);
    call(*unary, kOneMiB);
    for (const size_t size : {1, 100, 10'000, 100'000}) {
      call(*stream, size);
      call(*unary, size);
    }
  }
}

// The messages of one connection, each a part short of its end.
TEST_F(IncomingWatchTest, IncompleteMessagesAreCountedWithinTls) {
  auto server = testing::StartServer(testing::PlainEchoService(),
                                     {.transport = "grpc", .max_incomplete_bytes = 8 * kOneMiB});
  auto member = testing::Connect(*server);
  testing::StockStream stream(*server);
  const auto write = [&](uint64_t call, bool first) {
    v1::StreamFrame frame = testing::Request(call, std::string(kOneMiB, 'x'), first ? testing::kEcho : "");
    if (first) frame.set_message_bytes(4 * kOneMiB);
    return stream.Write(frame);
  };
  uint64_t call = 0;
  bool open = true;
  while (open && call < 1000) {
    ++call;
    for (const bool first : {true, false, false}) open = open && write(call, first);
  }
  EXPECT_FALSE(open) << "3 GiB of incomplete messages";
  EXPECT_EQ(stream.End().error_code(), grpc::StatusCode::UNAVAILABLE);
  TANDEM_EXPECT_OK(member->Call(testing::kEcho, Bytes(), {.timeout = testing::kTestTimeout}).status());
}

TEST(RequestMemoryTest, APeerAndItsSocketHaveTheSameKey) {
  sockaddr_storage address = {};
  auto& four = reinterpret_cast<sockaddr_in&>(address);
  four = {.sin_family = AF_INET, .sin_port = htons(4711)};
  four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(KeyOfPeer("ipv4:127.0.0.1:4711").size(), 18u);
  EXPECT_EQ(KeyOfPeer("ipv4:127.0.0.1:4711"), KeyOfAddress(address));
  EXPECT_NE(KeyOfPeer("ipv4:127.0.0.1:4712"), KeyOfAddress(address));
  address = {};
  auto& six = reinterpret_cast<sockaddr_in6&>(address);
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(4711);
  six.sin6_addr = in6addr_loopback;
  EXPECT_EQ(KeyOfPeer("ipv6:[::1]:4711"), KeyOfAddress(address));
  EXPECT_EQ(KeyOfPeer("ipv6:%5B::1%5D:4711"), KeyOfAddress(address));
  EXPECT_EQ(KeyOfPeer("ipv6:[::ffff:127.0.0.1]:4711"), KeyOfPeer("ipv4:127.0.0.1:4711"));
  for (const char* peer : {"", "unix:", "unix:/path", "ipv4:", "ipv4:1.2.3:4", "ipv4:1.2.3.4",
                           "ipv4:1.2.3.4:70000", "ipv6:[::1", "fd:7"}) {
    EXPECT_EQ(KeyOfPeer(peer), "") << peer;
  }
}

TEST(RequestMemoryTest, AConnectionAndAllTogetherHaveALimit) {
  using ::tandem::testing::StatusIs;
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  auto memory = std::make_unique<RequestMemory>(100, 250, 220);
  const std::string one = "ipv4:127.0.0.1:1", two = "ipv4:127.0.0.1:2", three = "ipv4:127.0.0.1:3";
  const std::shared_ptr<ConnectionMemory> first = memory->Of(one);
  EXPECT_EQ(memory->Of(one), first);
  EXPECT_NE(memory->Of("unix:"), memory->Of("unix:"));
  TANDEM_EXPECT_OK(first->Admit(220));  // alone
  EXPECT_THAT(first->Admit(221), StatusIs(absl::StatusCode::kResourceExhausted,
                                          AllOf(HasSubstr("221 bytes"), HasSubstr("limit of 220 bytes"))));
  first->Hold(90);
  TANDEM_EXPECT_OK(memory->Of(one)->Admit(10));
  EXPECT_THAT(memory->Of(one)->Admit(11),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_held_request_bytes)")));
  const std::shared_ptr<ConnectionMemory> second = memory->Of(two);
  second->Hold(100);
  TANDEM_EXPECT_OK(memory->Of(three)->Admit(60));
  EXPECT_THAT(memory->Of(three)->Admit(61),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_held_request_bytes_in_all")));
  second->Release(100);
  TANDEM_EXPECT_OK(memory->Of(three)->Admit(61));
  memory.reset();
  first->Release(90);  // calls may outlive the server
}

}  // namespace
}  // namespace tandem::rpc
