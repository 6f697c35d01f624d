// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/grant.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tandem/v1/grant.pb.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

GrantClaims Reader() {
  return {.name = "serving",
          .role = "reader",
          .tables = {"user*", "item"},
          .expires = absl::Now() + absl::Hours(1),
          .calls_per_second = 100,
          .bytes_per_second = 1e6};
}

TEST(GrantTest, AGrantSurvivesItsTextAndItsServerKnowsWhatItAllows) {
  const JobKey key = JobKey::Make();
  TANDEM_ASSERT_OK_AND_ASSIGN(const Grant made, Grant::Make(key, Reader()));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Grant read, Grant::FromText(made.ToText() + "\n", "a file"));
  const Caller caller = read.Identify({.member = "serve/0"});
  EXPECT_EQ(caller.member, "serve/0");
  EXPECT_EQ(caller.key_id, key.Id());
  EXPECT_TRUE(PresentsGrant(caller));
  EXPECT_THAT(CheckCaller(caller), testing::IsOk());
  EXPECT_EQ(Caller::FromBytes(caller.ToBytes()).token, caller.token);
  TANDEM_ASSERT_OK_AND_ASSIGN(const GrantClaims claims, CheckGrant(caller, GrantKey(key)));
  EXPECT_EQ(claims.id, made.claims().id);
  EXPECT_EQ(claims.id.size(), 16u);
  EXPECT_EQ(claims.name, "serving");
  EXPECT_EQ(claims.role, "reader");
  EXPECT_EQ(claims.tables, (std::vector<std::string>{"user*", "item"}));
  EXPECT_EQ(claims.expires, made.claims().expires);
  EXPECT_EQ(claims.calls_per_second, 100);
  EXPECT_EQ(claims.bytes_per_second, 1e6);
}

TEST(GrantTest, TwoGrantsOfTheSameClaimsHaveDifferentIds) {
  const JobKey key = JobKey::Make();
  EXPECT_NE(Grant::Make(key, Reader())->claims().id, Grant::Make(key, Reader())->claims().id);
}

TEST(GrantTest, AGrantOfAnotherKeyIsRefused) {
  const Caller caller = Grant::Make(JobKey::Make(), Reader())->Identify({});
  EXPECT_THAT(CheckGrant(caller, GrantKey(JobKey::Make())), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(CheckGrant(caller, ""), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST(GrantTest, ClaimsThatWereChangedAreRefusedWhateverByteItIs) {
  const JobKey key = JobKey::Make();
  const Caller caller = Grant::Make(key, Reader())->Identify({});
  for (size_t at = 0; at < caller.token.size(); ++at) {
    Caller forged = caller;
    forged.token[at] = static_cast<char>(forged.token[at] ^ 1);
    EXPECT_FALSE(CheckGrant(forged, GrantKey(key)).ok()) << "byte " << at;
  }
}

TEST(GrantTest, AHolderCannotRaiseItsRoleWithTheTextOfTheFile) {
  const JobKey key = JobKey::Make();
  const Caller caller = Grant::Make(key, Reader())->Identify({});
  v1::GrantProof proof;
  ASSERT_TRUE(proof.ParseFromString(caller.token.substr(1)));
  v1::GrantClaims claims;
  ASSERT_TRUE(claims.ParseFromString(proof.claims()));
  claims.set_role("operator");
  proof.set_claims(claims.SerializeAsString());
  EXPECT_THAT(CheckGrant({.token = "g" + proof.SerializeAsString()}, GrantKey(key)),
              StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST(GrantTest, AnExpiredGrantIsRefusedByItsHolderWithTheTime) {
  GrantClaims claims = Reader();
  claims.expires = absl::FromUnixSeconds(1'600'000'000);
  const std::string text = Grant::Make(JobKey::Make(), claims)->ToText();
  EXPECT_THAT(Grant::FromText(text, "/etc/serving.grant"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("/etc/serving.grant"), HasSubstr("2020-09-13 12:26:40 UTC"))));
}

TEST(GrantTest, RolesHaveTheRightsThatTheHeaderSays) {
  const auto rights = [](const std::string& role) {
    std::string text;
    for (const Right right : {Right::kObserve, Right::kRead, Right::kTrain, Right::kAct, Right::kMember,
                              Right::kReplica, Right::kAdmin}) {
      if (GrantClaims{.role = role}.Has(right)) text += std::string(RightName(right)) + " ";
    }
    return text;
  };
  EXPECT_EQ(rights("reader"), "observe read ");
  EXPECT_EQ(rights("trainer"), "observe read train ");
  EXPECT_EQ(rights("actor"), "observe read act ");
  EXPECT_EQ(rights("learner"), "observe read train act ");
  EXPECT_EQ(rights("operator"), "observe administer ");
  EXPECT_EQ(rights("root"), "");
}

TEST(GrantTest, PatternsCoverNamesAsAShellDoes) {
  const GrantClaims claims = Reader();
  EXPECT_TRUE(claims.Covers("user"));
  EXPECT_TRUE(claims.Covers("user/age"));
  EXPECT_TRUE(claims.Covers("item"));
  EXPECT_FALSE(claims.Covers("items"));
  EXPECT_FALSE(claims.Covers("a user"));
  EXPECT_FALSE(claims.Covers(""));
  EXPECT_FALSE(claims.Covers("User"));
  EXPECT_TRUE(GrantClaims{}.Covers("anything"));
}

TEST(GrantTest, ClaimsThatMakeNoSenseAreRefusedByName) {
  const auto make = [](auto change) {
    GrantClaims claims = Reader();
    change(&claims);
    return Grant::Make(JobKey::Make(), claims).status();
  };
  const auto kBad = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(make([](GrantClaims* c) { c->role = "king"; }), StatusIs(kBad, HasSubstr("reader, trainer")));
  EXPECT_THAT(make([](GrantClaims* c) { c->name = std::string(65, 'n'); }), StatusIs(kBad));
  EXPECT_THAT(make([](GrantClaims* c) { c->tables = {""}; }), StatusIs(kBad, HasSubstr("empty")));
  EXPECT_THAT(make([](GrantClaims* c) { c->tables.assign(100, std::string(20, 't')); }),
              StatusIs(kBad, HasSubstr("bytes, of at most")));
  EXPECT_THAT(make([](GrantClaims* c) { c->calls_per_second = -1; }), StatusIs(kBad));
  EXPECT_THAT(make([](GrantClaims* c) { c->bytes_per_second = 0.0 / 0.0; }), StatusIs(kBad));
}

TEST(GrantTest, TextThatIsNoGrantIsRefusedAndNotRepeated) {
  const std::string whole = Grant::Make(JobKey::Make(), Reader())->ToText();
  for (const std::string& text :
       std::vector<std::string>{"", "tandem_grant_", "tandem_grant_%%%", JobKey::Make().ToText(),
                                whole.substr(0, whole.size() / 2)}) {
    const auto grant = Grant::FromText(text, "a file");
    EXPECT_THAT(grant, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a file")));
    if (text.size() > 40) {
      EXPECT_THAT(std::string(grant.status().message()), Not(HasSubstr(text.substr(13, 20))));
    }
  }
}

TEST(GrantTest, ValiditiesAreSecondsToDays) {
  EXPECT_EQ(*ParseGrantDuration("90s"), absl::Seconds(90));
  EXPECT_EQ(*ParseGrantDuration("12h"), absl::Hours(12));
  EXPECT_EQ(*ParseGrantDuration("30d"), absl::Hours(720));
  for (const char* text : {"", "0s", "-1h", "d", "30", "forever", "inf", "99999d", "1e9h", "30d1h"}) {
    EXPECT_THAT(ParseGrantDuration(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

}  // namespace
}  // namespace tandem::rpc
