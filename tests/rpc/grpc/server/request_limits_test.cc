// SPDX-License-Identifier: Apache-2.0
// Sends a server what Tandem's own channels never send, from clients that have shown no identity.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/wire/frame.h"
#include "tests/rpc/hostile_connection.h"
#include "tests/rpc/stream_peers.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/trusted_network.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TrustedNetworkScope;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::HostileConnection;
using testing::kEcho;
using testing::StockClient;

constexpr size_t kMiB = size_t{1} << 20;

std::unique_ptr<Server> StartEcho(ServerOptions options = {}) {
  options.transport = "grpc";
  return testing::StartServer(testing::PlainEchoService(), options);
}

std::string EchoMessage(size_t payload) {
  return EncodeBulk(v1::EchoMessage(), Bytes(std::string(payload, 'x'))).Flatten();
}

TEST(RequestLimitsTest, ACompressedRequestIsRefusedAndNotUnpacked) {
  auto server = StartEcho();
  StockClient client(*server);
  TANDEM_ASSERT_OK(client.Call(kEcho, EchoMessage(1000)));
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    EXPECT_THAT(client.Call(kEcho, EchoMessage(3 * kMiB), algorithm),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("is disabled")));
    EXPECT_THAT(client.Call(kStreamMethod, testing::Request(1, "x").SerializeAsString(), algorithm),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("is disabled")));
  }
  TANDEM_EXPECT_OK(client.Call(kEcho, EchoMessage(1000)));
}

// The flag without the header that names the algorithm: the bytes are taken as they are.
TEST(RequestLimitsTest, AFrameWithTheCompressedFlagAloneIsNotUnpacked) {
  const TrustedNetworkScope plain;
  auto server = StartEcho();
  HostileConnection connection(server->port());
  ASSERT_TRUE(connection.Open());
  const std::string message = EchoMessage(100);
  connection.Headers(1, kEcho);
  connection.Data(1, HostileConnection::Message(message, /*compressed=*/true), /*end=*/true);
  EXPECT_TRUE(connection.AwaitAnswer(1));
  TANDEM_EXPECT_OK(testing::Connect(*server)->Call(kEcho, Bytes(message), {}).status());
}

TEST(RequestLimitsTest, AGrpcCallHasAtMostFourMebibytesAndAStreamTakesMore) {
  auto server = StartEcho();
  StockClient client(*server);
  TANDEM_EXPECT_OK(client.Call(kEcho, EchoMessage(4 * kMiB - 100)));
  const std::string longer = EchoMessage(4 * kMiB);
  EXPECT_THAT(client.Call(kEcho, longer),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr(absl::StrCat(longer.size())), HasSubstr("4194304"))));
  auto one_by_one = testing::Connect(*server, {.stream = false});
  EXPECT_THAT(one_by_one->Call(kEcho, Bytes(longer), {}).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr(absl::StrCat(longer.size())), HasSubstr("4194304"))));
  EXPECT_EQ(testing::Connect(*server)->Call(kEcho, Bytes(longer), {})->size(), longer.size());
}

TEST(RequestLimitsTest, AnAnswerThatIsTooLongForAGrpcCallIsRefusedAndNamesTheLimit) {
  auto server = testing::StartServer(testing::EchoService(
      [](std::shared_ptr<ServerCall> call) { call->Finish(Bytes(std::string(5 * kMiB, 'x'))); }));
  StockClient client(*server);
  EXPECT_THAT(client.Call(kEcho, ""),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("5242880"), HasSubstr("4194304"), HasSubstr(kStreamMethod))));
  EXPECT_EQ(testing::Connect(*server)->Call(kEcho, Bytes(), {})->size(), 5 * kMiB);
}

TEST(RequestLimitsTest, AConnectionHasAtMost64CallsAtOnce) {
  testing::DeferredCalls deferred;
  auto server = testing::StartServer(testing::DeferringService(&deferred), {.transport = "grpc"});
  auto client = testing::Connect(*server, {.stream = false});
  constexpr int kCalls = 100;
  std::vector<std::shared_ptr<absl::Notification>> ended;
  for (int i = 0; i < kCalls; ++i) {
    ended.push_back(std::make_shared<absl::Notification>());
    client->CallAsync(kEcho, Bytes(), {.timeout = testing::kTestTimeout},
                      [done = ended.back()](const absl::StatusOr<Bytes>& response) {
                        EXPECT_TRUE(response.ok()) << response.status();
                        done->Notify();
                      });
  }
  std::vector<std::shared_ptr<ServerCall>> calls;
  while (calls.size() < 64) {
    calls.push_back(deferred.Take());
    ASSERT_NE(calls.back(), nullptr);
  }
  EXPECT_EQ(deferred.Take(absl::Milliseconds(200)), nullptr);
  for (int i = 0; i < kCalls; ++i) {  // each answer lets another call in
    if (calls.empty()) calls.push_back(deferred.Take());
    ASSERT_NE(calls.back(), nullptr);
    calls.back()->Finish(Bytes());
    calls.pop_back();
  }
  for (const auto& one : ended) EXPECT_TRUE(one->WaitForNotificationWithTimeout(testing::kTestTimeout));
}

TEST(RequestLimitsTest, AConnectionThatSaysNothingIsClosedAfterTenSeconds) {
  auto server = StartEcho();
  HostileConnection silent(server->port());
  ASSERT_TRUE(silent.connected());
  const absl::Time begin = MonotonicNow();
  EXPECT_TRUE(silent.AwaitClosed());
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(18));  // gRPC's own limit is two minutes
}

}  // namespace
}  // namespace tandem::rpc
