// SPDX-License-Identifier: Apache-2.0
#include "launcher/host/port_reservation.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/store/store_server.h"
#include "tests/testing/status_matchers.h"

namespace tandem::launcher {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns whether a socket can bind `port` and listen at it.
bool CanListen(int port, bool reuse) {
  const ipc::Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = reuse ? 1 : 0;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
         ::listen(fd.get(), 1) == 0;
}

TEST(PortReservationTest, AProgramCanListenWhereNobodyElseIsSent) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto reservation, PortReservation::Keep(0));
  EXPECT_GT(reservation->port(), 0);
  EXPECT_TRUE(CanListen(reservation->port(), /*reuse=*/true));
  EXPECT_FALSE(CanListen(reservation->port(), /*reuse=*/false));
  // Again, as after a restart, and also with one of Tandem's servers.
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto server,
                              cluster::StoreServer::Start(absl::StrCat("0.0.0.0:", reservation->port())));
  EXPECT_EQ(server->port(), reservation->port());
}

TEST(PortReservationTest, TheKernelGivesAKeptPortToNobody) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto one, PortReservation::Keep(0));
  for (int i = 0; i < 200; ++i) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto other, PortReservation::Keep(0));
    EXPECT_NE(other->port(), one->port());
  }
}

TEST(PortReservationTest, APortInUseIsExplained) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto server, cluster::StoreServer::Start("127.0.0.1:0"));
  EXPECT_THAT(PortReservation::Keep(server->port()),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(absl::StrCat("port ", server->port())), HasSubstr("--master-port"))));
}

}  // namespace
}  // namespace tandem::launcher
