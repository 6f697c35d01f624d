// SPDX-License-Identifier: Apache-2.0
// Tests the client of servers other than Tandem's, and how it reconnects.

#include "rpc/grpc/client/generic_grpc_client.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "rpc/security/transport_security.h"
#include "tests/rpc/stream_peers.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using testing::kEcho;
using testing::kTestTimeout;
using testing::PlainEchoService;

TEST(GenericGrpcClientTest, ARestartedServerIsFoundAsSoonAsItIsCalledAgain) {
  // A host of this test's own: another program does not take the port between two servers.
  constexpr char kOwnHost[] = "127.0.77.4";
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start({.listen = absl::StrCat(kOwnHost, ":0")}, {PlainEchoService()});
  TANDEM_ASSERT_OK(server);
  const std::string target = absl::StrCat(kOwnHost, ":", (*server)->port());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto security, DerivedSecurity(nullptr));
  const crypto::Certificates& own = security->certificates;
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<GenericGrpcClient> client,
      GenericGrpcClient::Connect(target, {.tls = TlsCredentials{.ca = own.authority,
                                                                .certificate = own.certificate,
                                                                .key = own.private_key,
                                                                .server_name = crypto::kCertificateHost}}));
  std::vector<absl::Duration> took;
  for (int round = 0; round < 3; ++round) {
    TANDEM_ASSERT_OK(client->Call(kEcho, "", {}, kTestTimeout).status());
    server->reset();
    for (int i = 0; i < 3; ++i) {
      ASSERT_THAT(client->Call(kEcho, "", {}, kTestTimeout), StatusIs(absl::StatusCode::kUnavailable));
    }
    server = Server::Start({.listen = target}, {PlainEchoService()});
    TANDEM_ASSERT_OK(server);
    const absl::Time begin = absl::Now();
    while (!client->Call(kEcho, "", {}, kTestTimeout).ok()) ASSERT_LT(absl::Now(), begin + kTestTimeout);
    took.push_back(absl::Now() - begin);
  }
  std::sort(took.begin(), took.end());
  EXPECT_LT(took[1], absl::Milliseconds(2500)) << "gRPC left to itself looks at a connection every 5 s";
}

}  // namespace
}  // namespace tandem::rpc
