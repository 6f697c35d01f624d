// SPDX-License-Identifier: Apache-2.0
// TLS between gRPC channels and servers (rpc/grpc/tls_credentials.h).

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "rpc/channel.h"
#include "rpc/security/job_key.h"
#include "tests/rpc/stream_peers.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/trusted_network.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TrustedNetworkScope;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::shared_ptr<const JobKey> NewKey() { return std::make_shared<const JobKey>(JobKey::Make()); }

std::unique_ptr<Server> StartTcp(const std::shared_ptr<const JobKey>& key) {
  return testing::StartServer(testing::PlainEchoService(), {.transport = "grpc", .key = key});
}

std::unique_ptr<Channel> ConnectTo(const Server& server, const std::shared_ptr<const JobKey>& key) {
  auto channel = ConnectGrpc(absl::StrCat("127.0.0.1:", server.port()), {.key = key});
  EXPECT_TRUE(channel.ok()) << channel.status();
  return *std::move(channel);
}

absl::Status CallEcho(Channel& channel) {
  return channel.Call(testing::kEcho, Bytes(), {.timeout = testing::kTestTimeout, .idempotent = true})
      .status();
}

TEST(TlsTest, ProcessesWithTheSameKeyCallEachOther) {
  const auto key = NewKey();
  const auto server = StartTcp(key);
  const auto channel = ConnectTo(*server, key);
  TANDEM_EXPECT_OK(CallEcho(*channel));
  EXPECT_EQ(channel->transport(), "tcp");
}

TEST(TlsTest, AnotherKeyIsRefusedAtOnceAndTheErrorNamesThisSides) {
  const auto server = StartTcp(NewKey());
  const auto other = NewKey();
  const absl::Time begin = MonotonicNow();
  EXPECT_THAT(CallEcho(*ConnectTo(*server, other)),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr(other->Id()), HasSubstr("tandem key show"))));
  EXPECT_LT(MonotonicNow() - begin, testing::kTestTimeout / 2);
}

TEST(TlsTest, AClientInClearIsRefusedByAServerWithTls) {
  const auto server = StartTcp(NewKey());
  std::unique_ptr<Channel> channel;
  {
    const TrustedNetworkScope trusted;
    channel = ConnectTo(*server, nullptr);
  }
  EXPECT_THAT(channel->Call(testing::kEcho, Bytes(), {.timeout = absl::Seconds(2)}).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("--trusted-network")));
}

TEST(TlsTest, AServerInClearIsRefusedByAClientWithTls) {
  std::unique_ptr<Server> server;
  {
    const TrustedNetworkScope trusted;
    server = StartTcp(nullptr);
  }
  EXPECT_THAT(CallEcho(*ConnectTo(*server, NewKey())),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("--trusted-network")));
}

TEST(TlsTest, AUnixSocketIsInClear) {
  const ::tandem::testing::TempDir directory;
  const std::string address = absl::StrCat("unix:", directory.path(), "/s");
  auto server = testing::StartServer(testing::PlainEchoService(),
                                     {.listen = address, .transport = "grpc", .key = NewKey()});
  auto channel = ConnectGrpc(address, {.key = NewKey()});
  TANDEM_ASSERT_OK(channel);
  TANDEM_EXPECT_OK(CallEcho(**channel));
}

TEST(TlsTest, ATrustedNetworkIsInClear) {
  const TrustedNetworkScope trusted;
  const auto server = StartTcp(NewKey());
  TANDEM_EXPECT_OK(CallEcho(*ConnectTo(*server, NewKey())));
}

}  // namespace
}  // namespace tandem::rpc
