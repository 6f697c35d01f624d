// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/unix_buffers.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/rpc/stream_peers.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

// Returns the smallest SO_SNDBUF of the sockets of this process that are connected to one end or the other.
int SmallestBuffer(int* sockets) {
  int smallest = 1 << 30;
  *sockets = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    int domain = 0, bytes = 0;
    socklen_t size = sizeof(int);
    sockaddr_un peer;
    socklen_t length = sizeof(peer);
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_UNIX) continue;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0)
      continue;  // it is a listening socket
    size = sizeof(int);
    if (::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size) != 0) continue;
    smallest = std::min(smallest, bytes);
    ++*sockets;
  }
  return smallest;
}

TEST(UnixBuffersTest, BothEndsOfAConnectionHoldMegabytes) {
  int before = 0;
  SmallestBuffer(&before);
  ASSERT_EQ(before, 0);
  const std::string listen = absl::StrCat("unix:", ::testing::TempDir(), "buffers", ::getpid());
  auto server = testing::StartServer(testing::PlainEchoService(), {.listen = listen, .transport = "grpc"});
  auto channel = ConnectGrpc(listen);
  TANDEM_ASSERT_OK(channel);
  TANDEM_ASSERT_OK((*channel)->Call(testing::kEcho, Bytes(), {.timeout = testing::kTestTimeout}));
  int limit = 0;
  ASSERT_TRUE(std::ifstream("/proc/sys/net/core/wmem_max") >> limit);
  int sockets = 0;
  EXPECT_EQ(SmallestBuffer(&sockets), 2 * std::min(limit, 2 << 20));  // Linux doubles the requested size
  EXPECT_EQ(sockets, 2);
}

}  // namespace
}  // namespace tandem::rpc
