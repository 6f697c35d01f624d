// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/store_access.h"

#include <string>

#include "cluster/store/job_token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kOfUser[] = "a-token-of-the-user", kOfAnother[] = "another-token-of-him";
constexpr auto kDenied = absl::StatusCode::kPermissionDenied;

class StoreAccessTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::string> Member(const std::string& token = "", bool secret = false) {
    return access_.Join({.member = "worker/0", .token = token}, /*member=*/true, secret);
  }
  absl::StatusOr<std::string> Client(const std::string& token = "", bool secret = false) {
    return access_.Join({.token = token}, /*member=*/false, secret);
  }
  absl::Status Set(const std::string& token) {
    return access_.Authorize({.member = "worker/7", .token = token}, "tandem.v1.Store/Set",
                             rpc::Right::kMember);
  }
  StoreAccess access_{{}};
};

TEST_F(StoreAccessTest, NobodyIsServedBeforeTheFirstJoin) {
  EXPECT_THAT(Set(""), StatusIs(kDenied));
  EXPECT_THAT(Set(kOfUser), StatusIs(kDenied));
}

TEST_F(StoreAccessTest, ProcessesWithoutATokenGetTheSameRandomOne) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string token, Member());
  EXPECT_THAT(CheckJobToken(token), IsOk());
  EXPECT_EQ(Member().value_or("refused"), token);
  EXPECT_EQ(Client().value_or("refused"), token);
  EXPECT_THAT(Set(token), IsOk());
  EXPECT_THAT(Set(""), StatusIs(kDenied, AllOf(HasSubstr("tandem.v1.Store/Set"), HasSubstr("worker/7"),
                                               HasSubstr("right to be a member"), Not(HasSubstr(token)))));
  EXPECT_THAT(Set(kOfUser), StatusIs(kDenied, HasSubstr("another token")));
}

TEST_F(StoreAccessTest, ATokenOfTheMembersEnvironmentIsGivenToNobody) {
  EXPECT_EQ(Member(kOfUser, /*secret=*/true).value_or("refused"), kOfUser);
  EXPECT_EQ(Member(kOfUser, /*secret=*/true).value_or("refused"), kOfUser);
  for (const auto& refused :
       {Member(), Client(), Member(kOfAnother, true), Client(kOfAnother, true), Client(kOfAnother)}) {
    EXPECT_THAT(refused, StatusIs(kDenied, AllOf(HasSubstr("TANDEM_JOB_TOKEN"), Not(HasSubstr(kOfUser)))));
  }
  EXPECT_THAT(Set(kOfUser), IsOk());
}

TEST_F(StoreAccessTest, MembersWithAndWithoutTheVariableDoNotMix) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string token, Member());
  EXPECT_THAT(Member(kOfUser, /*secret=*/true),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("TANDEM_JOB_TOKEN"), Not(HasSubstr(kOfUser)), Not(HasSubstr(token)))));
}

// Launchers of several jobs meet at one store, each with a token of its own job.
TEST_F(StoreAccessTest, ClientsWithTokensOfDifferentJobsShareTheTokenOfTheStore) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string token, Client(kOfUser, /*secret=*/true));
  EXPECT_NE(token, kOfUser);
  EXPECT_EQ(Client(kOfAnother, /*secret=*/true).value_or("refused"), token);
  EXPECT_THAT(Set(kOfUser), StatusIs(kDenied));
  // A job then runs at the store: nobody gets its token, and earlier clients go on.
  EXPECT_EQ(Member(kOfUser, /*secret=*/true).value_or("refused"), kOfUser);
  EXPECT_THAT(Set(token), IsOk());
  EXPECT_EQ(Client(token).value_or("refused"), token);
  EXPECT_THAT(Client(), StatusIs(kDenied));
}

TEST_F(StoreAccessTest, AStoreThatHasStartedAgainTakesTheTokenOfItsMembersOver) {
  const std::string before = NewJobToken();
  EXPECT_EQ(Client(before).value_or("refused"), before);
  EXPECT_EQ(Member().value_or("refused"), before);
}

TEST_F(StoreAccessTest, MembersThatComeBackAfterANewOneGoOnWithTheirTokenAndLearnTheNewOne) {
  const std::string before = NewJobToken();
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string token, Member());
  EXPECT_THAT(Set(before), StatusIs(kDenied));
  EXPECT_EQ(Member(before).value_or("refused"), token);
  EXPECT_THAT(Set(before), IsOk());
}

TEST_F(StoreAccessTest, AMalformedTokenIsNotTakenOver) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string token, Member("short"));
  EXPECT_THAT(CheckJobToken(token), IsOk());
}

TEST(StoreAccessOfAHostTest, TheTokenOfTheHostIsGivenToNobody) {
  StoreAccess access({.token = kOfUser});
  const auto join = [&access](const std::string& token) {
    return access.Join({.token = token}, /*member=*/true, /*secret=*/true);
  };
  EXPECT_THAT(join(""), StatusIs(kDenied));
  EXPECT_THAT(join(kOfAnother), StatusIs(kDenied));
  EXPECT_EQ(join(kOfUser).value_or("refused"), kOfUser);
}

TEST(StoreAccessOfALauncherTest, CallersTryAgainUntilTheTokenIsKnown) {
  StoreAccess access({.token_follows = true});
  EXPECT_THAT(access.Join({}, true, false), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(access.Authorize({.token = kOfUser}, "tandem.v1.Store/Set", rpc::Right::kMember),
              StatusIs(absl::StatusCode::kUnavailable));
  access.SetToken(kOfUser);
  EXPECT_THAT(access.Join({}, true, false), StatusIs(kDenied));
  EXPECT_EQ(access.Join({.token = kOfUser}, true, true).value_or("refused"), kOfUser);
}

}  // namespace
}  // namespace tandem::cluster
