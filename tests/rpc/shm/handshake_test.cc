// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/handshake.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/ipc/unix_socket.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc::shm {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr absl::Duration kTestTimeout = absl::Seconds(30);
constexpr size_t kMessageBytes = 1 << 20;

class HandshakeTest : public ::testing::Test {
 protected:
  HandshakeTest() {
    absl::StatusOr<Geometry> geometry = Geometry::Make(1 << 16, 2 << 20);
    TANDEM_EXPECT_OK(geometry);
    absl::StatusOr<std::unique_ptr<Acceptor>> opened = Acceptor::Open(*geometry, kMessageBytes);
    TANDEM_EXPECT_OK(opened);
    acceptor = *std::move(opened);
  }
  absl::Status DialIt() {
    return DialWith(*acceptor->tickets().Issue(Caller(), "ipv4:127.0.0.1:1", MonotonicNow()));
  }
  absl::Status DialWith(const std::string& ticket) {
    return Dial(acceptor->socket_name(), ticket, absl::Now() + kTestTimeout, kMessageBytes).status();
  }

  std::unique_ptr<Acceptor> acceptor;
};

TEST_F(HandshakeTest, WhoComesAsTheDoorClosesIsNotLeftWaiting) {
  absl::Status dialed;
  const absl::Time begin = absl::Now();
  std::thread client([&] { dialed = DialIt(); });
  acceptor->Close();
  client.join();
  EXPECT_FALSE(dialed.ok());
  EXPECT_LT(absl::Now() - begin, kTestTimeout / 2) << dialed;
  EXPECT_EQ(DialIt().code(), absl::StatusCode::kFailedPrecondition) << "nobody listens any more";
  EXPECT_LT(absl::Now() - begin, kTestTimeout / 2);
}

TEST_F(HandshakeTest, WhoWaitsAtTheDoorIsShownOutWhenItCloses) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const ipc::Descriptor silent, ipc::ConnectAbstract(acceptor->socket_name()));
  const ipc::Descriptor stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  TakeLink take = [](const std::shared_ptr<Link>&, const Caller&) { FAIL() << "it showed no ticket"; };
  ASSERT_TRUE(acceptor->Wait(stop.get(), take));  // the client has been accepted
  acceptor->Close();
  ASSERT_TRUE(ipc::AwaitReadable(silent.get(), absl::Now() + kTestTimeout));
  char byte;
  EXPECT_EQ(read(silent.get(), &byte, 1), 0) << "the end of the connection";
}

TEST_F(HandshakeTest, ATicketIsAcceptedOnceAndARefusedClientIsToldWhy) {
  const ipc::Descriptor stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::vector<Caller> callers;
  std::vector<std::shared_ptr<Link>> links;
  TakeLink take = [&](std::shared_ptr<Link> link, Caller caller) {
    links.push_back(std::move(link));
    callers.push_back(std::move(caller));
  };
  std::thread server([&] {
    while (acceptor->Wait(stop.get(), take)) {
    }
  });
  const Caller worker = {.run_id = "job", .epoch = 1, .member = "worker/0", .token = "token", .life = 1};
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string ticket,
                              acceptor->tickets().Issue(worker, "ipv4:127.0.0.1:1", MonotonicNow()));
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const std::string old,
      acceptor->tickets().Issue(worker, "ipv4:127.0.0.1:1",
                                MonotonicNow() - Tickets::kLifetime - absl::Seconds(1)));
  TANDEM_EXPECT_OK(DialWith(ticket));
  EXPECT_THAT(DialWith(ticket), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("used before")));
  EXPECT_THAT(DialWith(old), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("expired")));
  EXPECT_THAT(DialWith(std::string(kTicketBytes, '0')),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("no such ticket")));
  const uint64_t one = 1;
  EXPECT_EQ(write(stop.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  server.join();
  ASSERT_EQ(callers.size(), 1u);
  EXPECT_EQ(callers[0].ToBytes(), worker.ToBytes());
}

}  // namespace
}  // namespace tandem::rpc::shm
