// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/server/connection_limit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/ipc/descriptor.h"
#include "tests/rpc/stream_peers.h"
#include "tests/testing/all_descriptors.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::AllDescriptors;
using ::tandem::testing::OpenDescriptors;
using ::tandem::testing::StatusIs;

// Opens a connection to the server that sends nothing.
ipc::Descriptor ConnectSilently(const Server& server) {
  ipc::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(server.port()))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return ipc::Descriptor();
  return socket;
}

// Reads until the server closes the connection; returns false if it does not.
bool IsClosed(const ipc::Descriptor& socket) {
  while (true) {
    pollfd one = {socket.get(), POLLIN, 0};
    if (::poll(&one, 1, 30'000) != 1) return false;
    char bytes[256];
    if (::recv(socket.get(), bytes, sizeof(bytes), 0) <= 0) return true;
  }
}

absl::Status Echo(Channel& channel, absl::Duration timeout = testing::kTestTimeout) {
  return channel.Call(testing::kEcho, Bytes(), {.timeout = timeout}).status();
}

TEST(ConnectionLimitTest, AClientBeyondTheLimitIsRefusedUntilAnotherOneLeaves) {
  auto server =
      testing::StartServer(testing::PlainEchoService(), {.transport = "grpc", .max_connections = 2});
  auto first = testing::Connect(*server), second = testing::Connect(*server);
  TANDEM_ASSERT_OK(Echo(*first));
  TANDEM_ASSERT_OK(Echo(*second));
  auto third = testing::Connect(*server);
  const absl::Status refused = Echo(*third, absl::Seconds(1));
  EXPECT_THAT(refused, ::testing::AnyOf(StatusIs(absl::StatusCode::kUnavailable),
                                        StatusIs(absl::StatusCode::kDeadlineExceeded)));
  EXPECT_TRUE(IsClosed(ConnectSilently(*server)));
  TANDEM_EXPECT_OK(Echo(*first));  // the others are served meanwhile
  first.reset();
  const absl::Time end = absl::Now() + testing::kTestTimeout;
  absl::Status served;
  do {  // the server needs a moment to see that the first client has gone
    served = Echo(*third, absl::Seconds(5));
  } while (!served.ok() && absl::Now() < end);
  TANDEM_EXPECT_OK(served);
  TANDEM_EXPECT_OK(Echo(*second));
}

TEST(ConnectionLimitTest, ManySilentClientsDoNotUseUpTheDescriptors) {
  auto server =
      testing::StartServer(testing::PlainEchoService(), {.transport = "grpc", .max_connections = 8});
  auto member = testing::Connect(*server);
  TANDEM_ASSERT_OK(Echo(*member));
  const int before = OpenDescriptors();
  constexpr int kClients = 500;
  std::vector<ipc::Descriptor> silent;
  for (int i = 0; i < kClients; ++i) {
    silent.push_back(ConnectSilently(*server));
    ASSERT_TRUE(silent.back().valid()) << i;
  }
  for (int i = 7; i < kClients; ++i) ASSERT_TRUE(IsClosed(silent[i])) << i;
  // Both ends are in this process: the clients' own, and those of the accepted ones. gRPC closes refused
  // connections a moment later than the client sees their end.
  const absl::Time end = absl::Now() + testing::kTestTimeout;
  while (OpenDescriptors() > before + kClients + 8 && absl::Now() < end) TANDEM_ASSERT_OK(Echo(*member));
  EXPECT_LE(OpenDescriptors(), before + kClients + 8);
  TANDEM_EXPECT_OK(Echo(*member));
}

// gRPC never accepts again once it had no descriptor for a client.
TEST(ConnectionLimitTest, AServerThatHadNoDescriptorForAClientServesClientsAgain) {
  auto server = testing::StartServer(testing::PlainEchoService(), {.transport = "grpc"});
  auto member = testing::Connect(*server);
  TANDEM_ASSERT_OK(Echo(*member));
  const ipc::Descriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(server->port()))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  {
    const AllDescriptors taken;
    ASSERT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    // The threads that answer these calls see the client, too.
    for (int i = 0; i < 200; ++i) TANDEM_ASSERT_OK(Echo(*member));
  }
  for (int i = 0; i < 3; ++i) {
    auto late = testing::Connect(*server);
    TANDEM_EXPECT_OK(Echo(*late));
  }
  TANDEM_EXPECT_OK(Echo(*member));
  const int port = server->port();
  server->Shutdown(absl::ZeroDuration());
  // Nobody listens any more.
  const ipc::Descriptor refused(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_NE(::connect(refused.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
}

// Clients that gRPC does not accept count as well.
TEST(ConnectionLimitTest, TheLimitHoldsForClientsThatGrpcDoesNotAccept) {
  auto server =
      testing::StartServer(testing::PlainEchoService(), {.transport = "grpc", .max_connections = 2});
  auto member = testing::Connect(*server);
  TANDEM_ASSERT_OK(Echo(*member));
  ipc::Descriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(server->port()))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  {
    const AllDescriptors taken;
    ASSERT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    for (int i = 0; i < 200; ++i) TANDEM_ASSERT_OK(Echo(*member));
  }
  // The first of these is the second connection; the other ones are refused.
  std::vector<ipc::Descriptor> more;
  more.push_back(std::move(client));
  for (int i = 0; i < 4; ++i) more.push_back(ConnectSilently(*server));
  for (size_t i = 1; i < more.size(); ++i) EXPECT_TRUE(IsClosed(more[i])) << i;
  TANDEM_EXPECT_OK(Echo(*member));
}

TEST(ConnectionLimitTest, TheLimitLeavesDescriptorsForFiles) {
  rlimit descriptors = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &descriptors), 0);
  EXPECT_EQ(EffectiveConnections(1), 1u);
  EXPECT_LE(EffectiveConnections(0), kDefaultConnections);
  if (descriptors.rlim_cur != RLIM_INFINITY) {
    EXPECT_EQ(EffectiveConnections(SIZE_MAX), descriptors.rlim_cur / 4 * 3);
  }
}

TEST(ConnectionLimitTest, TheSocketThatGotAClosedListenersNumberIsLeftAlone) {
  const auto listen = [] {
    ipc::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    EXPECT_EQ(::listen(socket.get(), 5), 0);
    return socket;
  };
  const auto connect = [](const ipc::Descriptor& listener) {
    sockaddr_in address = {};
    socklen_t size = sizeof(address);
    EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ipc::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    return socket;
  };
  const auto limit = std::make_shared<ConnectionLimit>("here", 0, /*tls=*/false);
  ipc::Descriptor failed = listen();
  const int number = failed.get();
  limit->AddListener(number);
  // gRPC closes a listener that it cannot bind, and the program opens another one.
  failed = ipc::Descriptor();
  ipc::Descriptor other = listen();
  if (other.get() != number) {
    ASSERT_EQ(::dup3(other.get(), number, O_CLOEXEC), number);
    other = ipc::Descriptor(number);
  }
  const ipc::Descriptor client = connect(other), refused = connect(other);
  const ipc::Descriptor accepted(::accept4(other.get(), nullptr, nullptr, SOCK_CLOEXEC));
  limit->AddConnection(accepted.get());  // beyond the limit
  // The client that waits was not refused: its connection can be accepted.
  pollfd waiting = {other.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&waiting, 1, 0), 1);
}

}  // namespace
}  // namespace tandem::rpc
