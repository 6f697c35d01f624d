// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/processes/relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/processes.h"

namespace tandem::testing {
namespace {

sockaddr_in AtPort(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool Readable(int socket, int milliseconds) {
  pollfd one = {socket, POLLIN, 0};
  return ::poll(&one, 1, milliseconds) == 1;
}

std::string Receive(int socket) {
  if (!Readable(socket, static_cast<int>(absl::ToInt64Milliseconds(kTestTimeout)))) return "(nothing)";
  char bytes[64];
  const ssize_t got = ::recv(socket, bytes, sizeof(bytes), 0);
  return got <= 0 ? "(end)" : std::string(bytes, static_cast<size_t>(got));
}

void Send(int socket, const std::string& text) {
  ASSERT_EQ(::send(socket, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

class RelayTest : public ::testing::Test {
 protected:
  RelayTest() {
    sockaddr_in address = AtPort(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    relay_.Forward(ntohs(address.sin_port));
    Connect();
  }
  ~RelayTest() override {
    for (const int one : {listener_, caller_, server_}) ::close(one);
  }
  void Connect() {
    for (const int one : {caller_, server_}) ::close(one);
    caller_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(relay_.address().substr(relay_.address().find(':') + 1), &port));
    const sockaddr_in address = AtPort(port);
    EXPECT_EQ(::connect(caller_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_TRUE(Readable(listener_, static_cast<int>(absl::ToInt64Milliseconds(kTestTimeout))));
    server_ = ::accept(listener_, nullptr, nullptr);
  }

  int listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int caller_ = -1, server_ = -1;
  Relay relay_;
};

constexpr int kAMoment = 50;  // milliseconds in which nothing must arrive

TEST_F(RelayTest, PassesBytesOnBothWays) {
  Send(caller_, "question");
  EXPECT_EQ(Receive(server_), "question");
  Send(server_, "answer");
  EXPECT_EQ(Receive(caller_), "answer");
}

TEST_F(RelayTest, PassesTheEndOfAConnectionOn) {
  ::shutdown(caller_, SHUT_WR);
  EXPECT_EQ(Receive(server_), "(end)");
  Send(server_, "answer");
  EXPECT_EQ(Receive(caller_), "answer");
}

TEST_F(RelayTest, HoldsBytesOfOneWayUntilTheNetworkHeals) {
  relay_.Cut(Relay::kEveryone, Relay::Way::kBack);
  Send(caller_, "question");
  EXPECT_EQ(Receive(server_), "question");
  Send(server_, "answer");
  EXPECT_FALSE(Readable(caller_, kAMoment));
  relay_.Heal();
  EXPECT_EQ(Receive(caller_), "answer");
}

TEST_F(RelayTest, HoldsTheEndOfAConnectionBack) {
  relay_.Cut(Relay::kEveryone);
  ::close(server_);
  server_ = -1;
  EXPECT_FALSE(Readable(caller_, kAMoment));
  relay_.Heal();
  EXPECT_EQ(Receive(caller_), "(end)");
}

TEST_F(RelayTest, CutsTheConnectionsOfOneProcessAlsoLaterOnes) {
  relay_.Cut(::getppid());  // not this process
  Send(caller_, "question");
  EXPECT_EQ(Receive(server_), "question");
  relay_.Cut(::getpid());
  Send(caller_, "held");
  EXPECT_FALSE(Readable(server_, kAMoment));
  Connect();
  Send(caller_, "held, too");
  EXPECT_FALSE(Readable(server_, kAMoment));
  relay_.Heal();
  EXPECT_EQ(Receive(server_), "held, too");
}

}  // namespace
}  // namespace tandem::testing
