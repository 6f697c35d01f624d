// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/shards.h"

#include <string>
#include <vector>

#include "base/json.h"
#include "cluster/store/store_server.h"
#include "nlohmann/json.hpp"
#include "ps/failover/placement_text.h"
#include "tests/testing/failover_service.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::FakeCopy;
using ::tandem::testing::Finished;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using v1::ReplicaStatus;
using v1::ShardPlacement;

// A job of two shards with a store. Shard 0 has a primary, a follower in sync and a learner; the primary of
// shard 1 is gone, and its follower takes over.
class ShardsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TANDEM_ASSERT_OK_AND_ASSIGN(store_, cluster::StoreServer::Start("127.0.0.1:0"));
    ShardPlacement& first = placements_[0];
    first.set_version(4);
    first.set_term(2);
    first.set_failovers(1);
    first.set_handovers(2);
    Name(first.mutable_primary(), "primary-0", primary_);
    Name(first.add_in_sync(), "follower-0", follower_);
    ReplicaStatus& primary = primary_status_;
    primary.set_role(v1::REPLICA_ROLE_PRIMARY);
    primary.set_serving(true);
    primary.set_log_position(120);
    *primary.mutable_self() = first.primary();
    ReplicaStatus::Link* link = primary.add_links();
    *link->mutable_replica() = first.in_sync(0);
    link->set_in_sync(true);
    link->set_applied_position(117);
    Name(primary.add_links()->mutable_replica(), "learner-0", learner_);
    primary_.Say(primary);
    Say(follower_, first.in_sync(0), v1::REPLICA_ROLE_FOLLOWER);
    Say(learner_, primary.links(1).replica(), v1::REPLICA_ROLE_LEARNER);

    ShardPlacement& second = placements_[1];
    second.set_version(2);
    second.set_term(1);
    second.mutable_primary()->set_id("primary-1");
    second.mutable_primary()->set_address("127.0.0.1:1");  // nobody listens there
    Name(second.add_in_sync(), "follower-1", other_);
    Say(other_, second.in_sync(0), v1::REPLICA_ROLE_TAKING_OVER);
    Publish();
  }
  static void Name(v1::Replica* replica, const std::string& id, const FakeCopy& copy) {
    replica->set_id(id);
    replica->set_address(copy.address());
  }
  static void Say(FakeCopy& copy, const v1::Replica& self, v1::ReplicaRole role) {
    ReplicaStatus status;
    *status.mutable_self() = self;
    status.set_role(role);
    copy.Say(status);
  }
  void Publish() {
    for (uint32_t shard = 0; shard < 2; ++shard) {
      TANDEM_ASSERT_OK(
          store_->store()->Set(ps::PlacementKey(shard), ps::PlacementToText(placements_[shard]).value()));
    }
  }
  std::string Store() const { return absl::StrCat("127.0.0.1:", store_->port()); }
  std::vector<ShardReport> AskAll() { return AskShards(Store(), 2, absl::Seconds(30)).value(); }

  std::unique_ptr<cluster::StoreServer> store_;
  FakeCopy primary_, follower_, learner_, other_;
  ShardPlacement placements_[2];
  ReplicaStatus primary_status_;
};

TEST_F(ShardsTest, EachShardHasALineThatTellsItsCopiesAndItsState) {
  const std::string text = ShardsToText(AskAll());
  EXPECT_THAT(text, ContainsRegex(absl::StrCat(" 0 +2 +", primary_.address(), " +", follower_.address(), " +",
                                               learner_.address(), " +120 +3 +1 +2 +ok")));
  EXPECT_THAT(text,
              ContainsRegex(absl::StrCat(" 1 +1 +127.0.0.1:1 +", other_.address(),
                                         " +- +- +- +0 +0 +no primary: ", other_.address(), " takes over")));
}

TEST_F(ShardsTest, JsonHasTheDocumentsAndWhatEachCopySays) {
  const Json json = ParseJson(ShardsToJson(AskAll()));
  const Json& first = json["shards"][0];
  EXPECT_EQ(first["has_primary"], true);
  EXPECT_EQ(first["lag"], 3);
  EXPECT_EQ(first["placement"]["primary"]["id"], "primary-0");
  EXPECT_EQ(first["copies"][0]["role"], "primary");
  EXPECT_EQ(first["copies"][1]["role"], "follower");
  EXPECT_EQ(first["copies"][2]["role"], "learner");
  EXPECT_EQ(first["copies"][2]["address"], learner_.address());
  const Json& second = json["shards"][1];
  EXPECT_EQ(second["has_primary"], false);
  EXPECT_THAT(second["copies"][0]["error"].get<std::string>(), HasSubstr("127.0.0.1:1"));
}

TEST_F(ShardsTest, AProcessThatHasStartedAgainIsNotTheCopyThatItWas) {
  Say(primary_, placements_[1].primary(), v1::REPLICA_ROLE_LEARNER);
  EXPECT_THAT(AskAll()[0].State(), AllOf(HasSubstr("no primary"), HasSubstr("has started again")));
}

TEST_F(ShardsTest, APrimaryWithoutAFollowerOrThatDoesNotServeSaysSo) {
  placements_[0].clear_in_sync();
  Publish();
  EXPECT_EQ(AskAll()[0].State(), "no follower in sync");
  primary_status_.set_serving(false);
  primary_status_.set_failure("the store cannot be reached");
  primary_.Say(primary_status_);
  EXPECT_EQ(AskAll()[0].State(),
            absl::StrCat("no primary: ", primary_.address(), " does not serve: the store cannot be reached"));
}

TEST_F(ShardsTest, APrimaryThatHandsOverSaysToWhom) {
  primary_status_.set_serving(false);
  primary_status_.set_handing_over_to(follower_.address());
  primary_.Say(primary_status_);
  EXPECT_EQ(AskAll()[0].State(), absl::StrCat("hands over to ", follower_.address()));
}

TEST_F(ShardsTest, AShardOfWhichNothingIsKnownYetHasNoPrimary) {
  const std::vector<ShardReport> shards = AskShards(Store(), 3, absl::Seconds(30)).value();
  ASSERT_EQ(shards.size(), 3u);
  EXPECT_THAT(shards[2].State(), HasSubstr("none has come up yet"));
}

TEST_F(ShardsTest, AJobWithoutFollowersIsToldHowToGetThem) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto store, cluster::StoreServer::Start("127.0.0.1:0"));
  EXPECT_THAT(AskShards(absl::StrCat("127.0.0.1:", store->port()), 1, absl::Seconds(30)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("--ps-followers")));
}

TEST_F(ShardsTest, TheExitCodeTellsWhetherEachShardHasAPrimary) {
  const auto status = [this](std::vector<std::string> more) {
    more.insert(more.begin(), {"ps", "status", "--store", Store()});
    return testing::RunTandem(more);
  };
  Finished asked = status({});
  EXPECT_EQ(asked.exit_code, 1);
  EXPECT_THAT(asked.out, HasSubstr("takes over"));
  EXPECT_THAT(asked.err, HasSubstr("1 of 2 shards have no primary"));
  ReplicaStatus primary;
  *primary.mutable_self() = placements_[1].in_sync(0);
  primary.set_role(v1::REPLICA_ROLE_PRIMARY);
  primary.set_serving(true);
  other_.Say(primary);
  *placements_[1].mutable_primary() = primary.self();
  placements_[1].clear_in_sync();
  Publish();
  asked = status({"--json"});
  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  EXPECT_EQ(ParseJson(asked.out)["shards"][1]["has_primary"], true);
}

}  // namespace
}  // namespace tandem::cli
