// SPDX-License-Identifier: Apache-2.0
// Connecting a group over TCP. tests/collectives/backends/network_failure_test.cc has the failures that all
// backends over a network have in common.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "base/ipc/descriptor.h"
#include "collectives/backends/tcp/mesh_connector.h"
#include "collectives/backends/tcp/tcp_backend.h"
#include "rpc/security/job_key.h"
#include "tests/collectives/backends/backend_fixture.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

TEST(TcpConnectTest, ARankThatGoesBeforeItConnectsIsNamed) {
  cluster::MemoryStore store;
  // The address of a process that listened only for a moment: no process listens on port 1 of this machine.
  TANDEM_ASSERT_OK(store.Set("address/0", "127.0.0.1 1"));
  BackendOptions options = OptionsOf(&store, 1, {"a", "a"});
  options.deadline = absl::Now() + absl::Seconds(5);
  EXPECT_THAT(TcpBackendFactory().make(options).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cannot connect to rank 0 at 127.0.0.1 1")));
}

TEST(TcpConnectTest, AnUnknownConnectionIsNotTakenForARank) {
  cluster::MemoryStore store;
  // The ranks of two groups share a store by mistake: rank 1 is of another group.
  std::thread other([&] {
    BackendOptions options = OptionsOf(&store, 1, {"a", "a"});
    options.group = "other";
    options.deadline = absl::Now() + absl::Seconds(1);
    EXPECT_FALSE(TcpBackendFactory().make(options).ok());
  });
  BackendOptions options = OptionsOf(&store, 0, {"a", "a"});
  options.deadline = absl::Now() + absl::Seconds(1);
  EXPECT_THAT(TcpBackendFactory().make(options).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 of 2")));
  other.join();
}

TEST(TcpConnectTest, ARankWithAnotherKeyIsRefusedAndBothSidesSaySo) {
  cluster::MemoryStore store;
  const absl::Time deadline = absl::Now() + absl::Seconds(2);
  absl::Status first;
  std::thread other([&] {
    first = tcp::ConnectMesh(&store, "g", 0, 2, "127.0.0.1", deadline,
                             std::make_shared<rpc::JobKey>(rpc::JobKey::Make()))
                .status();
  });
  EXPECT_THAT(tcp::ConnectMesh(&store, "g", 1, 2, "127.0.0.1", deadline,
                               std::make_shared<rpc::JobKey>(rpc::JobKey::Make())),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("different keys")));
  other.join();
  EXPECT_THAT(first, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("different keys")));
}

TEST(TcpConnectTest, RanksOfOneAddressTalkInClearAndOthersInTls) {
  for (const char* address : {"127.0.0.1", "127.0.0.2"}) {
    cluster::MemoryStore store;
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    const auto key = std::make_shared<rpc::JobKey>(rpc::JobKey::Make());
    std::thread other([&] {
      const auto sockets = tcp::ConnectMesh(&store, "g", 0, 2, "127.0.0.1", deadline, key);
      TANDEM_ASSERT_OK(sockets);
      EXPECT_EQ((*sockets)[1].tls != nullptr, std::string(address) != "127.0.0.1");
    });
    const auto sockets = tcp::ConnectMesh(&store, "g", 1, 2, address, deadline, key);
    other.join();
    TANDEM_ASSERT_OK(sockets);
    EXPECT_EQ((*sockets)[0].tls != nullptr, std::string(address) != "127.0.0.1");
  }
}

// Connects to rank 0, whose address is in the store.
ipc::Descriptor ConnectToFirst(cluster::Store& store) {
  const std::string where = store.Get("address/0", absl::Seconds(30)).value_or("");
  sockaddr_in address = {.sin_family = AF_INET};
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(where.substr(where.find(' ') + 1), &port)) << where;
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(inet_pton(AF_INET, where.substr(0, where.find(' ')).c_str(), &address.sin_addr), 1) << where;
  ipc::Descriptor stranger(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(stranger.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return stranger;
}

TEST(TcpConnectTest, ManySilentConnectionsDoNotKeepARankOut) {
  cluster::MemoryStore store;
  TANDEM_ASSERT_OK(store.Set("address/1", "to come"));  // so that rank 0 begins to accept
  std::thread first([&] { TANDEM_EXPECT_OK(TcpBackendFactory().make(OptionsOf(&store, 0, {"a", "a"}))); });
  std::vector<ipc::Descriptor> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(ConnectToFirst(store));
  // The oldest of them are closed: at most a few stay open beside the ranks' own.
  pollfd oldest = {silent[0].get(), POLLIN, 0};
  EXPECT_EQ(poll(&oldest, 1, 30'000), 1) << "still open";
  TANDEM_EXPECT_OK(TcpBackendFactory().make(OptionsOf(&store, 1, {"a", "a"})));
  first.join();
}

TEST(TcpConnectTest, AConnectionThatIsSlowInItsHandshakeIsClosedAfterTenSeconds) {
  cluster::MemoryStore store;
  TANDEM_ASSERT_OK(store.Set("address/1", "to come"));
  std::thread first([&] { TANDEM_EXPECT_OK(TcpBackendFactory().make(OptionsOf(&store, 0, {"a", "a"}))); });
  const ipc::Descriptor slow = ConnectToFirst(store);
  EXPECT_EQ(send(slow.get(), "\x16\x03", 2, MSG_NOSIGNAL), 2);  // the first bytes of TLS
  pollfd one = {slow.get(), POLLIN, 0};
  EXPECT_EQ(poll(&one, 1, 25'000), 1) << "still open";
  TANDEM_EXPECT_OK(TcpBackendFactory().make(OptionsOf(&store, 1, {"a", "a"})));
  first.join();
}

}  // namespace
}  // namespace tandem::collectives
