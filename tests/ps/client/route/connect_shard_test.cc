// SPDX-License-Identifier: Apache-2.0
#include "ps/client/route/connect_shard.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ps/failover/placement_text.h"
#include "rpc/server.h"
#include "tests/testing/failover_service.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::FakeCopy;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(60);

class ConnectShardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    placement_.set_version(5);
    placement_.set_term(2);
    placement_.mutable_primary()->set_id("a");
    placement_.mutable_primary()->set_address(primary_.address());
    v1::ReplicaStatus status;
    *status.mutable_placement() = placement_;
    *status.mutable_self() = placement_.primary();
    status.set_shard(3);
    status.set_role(v1::REPLICA_ROLE_PRIMARY);
    status.set_serving(true);
    primary_.Say(status);
  }
  // Connects to `address`, with a store that has `text` as the shard's document.
  absl::StatusOr<ShardConnection> WithStore(const std::string& address,
                                            const absl::StatusOr<std::string>& text) {
    return ConnectShard({.shard = 3,
                         .address = address,
                         .read =
                             [text](const std::string& key, absl::Duration) {
                               EXPECT_EQ(key, "ps/placement/3");
                               return text;
                             },
                         .timeout = kLimit});
  }
  // Returns the id of the copy to which a call through the channel goes.
  static std::string Callee(rpc::Channel& channel) {
    v1::ReplicaStatus status;
    TANDEM_EXPECT_OK(rpc::CallProto(channel, "/tandem.v1.Failover/GetPlacement", v1::GetPlacementRequest(),
                                    &status, {.timeout = kLimit, .idempotent = true}));
    return status.self().id();
  }

  FakeCopy primary_, other_;
  v1::ShardPlacement placement_;
};

TEST_F(ConnectShardTest, AShardWithADocumentIsReachedAtItsPrimaryWhateverAddressIsGiven) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardConnection connection,
                              WithStore(other_.address(), PlacementToText(placement_)));
  EXPECT_TRUE(connection.followers);
  EXPECT_EQ(Callee(*connection.channel), "a");
}

TEST_F(ConnectShardTest, AShardWithoutADocumentIsReachedAtTheAddress) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardConnection connection, WithStore(primary_.address(), std::string()));
  EXPECT_FALSE(connection.followers);
  EXPECT_THAT(connection.channel->target(), HasSubstr(primary_.address()));
}

TEST_F(ConnectShardTest, WithoutAStoreTheServerIsAsked) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardConnection connection,
                              ConnectShard({.shard = 3, .address = primary_.address(), .timeout = kLimit}));
  EXPECT_TRUE(connection.followers);
  EXPECT_EQ(Callee(*connection.channel), "a");
}

TEST_F(ConnectShardTest, AServerThatKnowsNothingOfFollowersHasNone) {
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<rpc::Server> server,
      rpc::Server::Start({.listen = "127.0.0.1:0", .transport = "grpc"}, std::vector<rpc::Service>()));
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const ShardConnection connection,
      ConnectShard({.shard = 3, .address = absl::StrCat("127.0.0.1:", server->port()), .timeout = kLimit}));
  EXPECT_FALSE(connection.followers);
}

TEST_F(ConnectShardTest, ADamagedDocumentAndAStoreThatIsGoneAreErrors) {
  EXPECT_THAT(WithStore(primary_.address(), std::string("{")).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("ps/placement/3")));
  EXPECT_THAT(WithStore(primary_.address(), absl::UnavailableError("gone")).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("gone")));
}

}  // namespace
}  // namespace tandem::ps
