// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/handshake.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "absl/time/clock.h"
#include "base/ipc/unix_socket.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc::shm {
namespace {

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
    return Dial(acceptor->socket_name(), acceptor->secret(), absl::Now() + kTestTimeout, kMessageBytes)
        .status();
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
  TakeLink take = [](const std::shared_ptr<Link>&, const Caller&) { FAIL() << "it showed no secret"; };
  ASSERT_TRUE(acceptor->Wait(stop.get(), take));  // the client has been accepted
  acceptor->Close();
  ASSERT_TRUE(ipc::AwaitReadable(silent.get(), absl::Now() + kTestTimeout));
  char byte;
  EXPECT_EQ(read(silent.get(), &byte, 1), 0) << "the end of the connection";
}

}  // namespace
}  // namespace tandem::rpc::shm
