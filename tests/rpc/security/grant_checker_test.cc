// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/grant_checker.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

class GrantCheckerTest : public ::testing::Test {
 protected:
  Caller CallerOf(GrantClaims claims) {
    const Grant grant = *Grant::Make(key_, std::move(claims));
    id_ = grant.claims().id;
    return grant.Identify({});
  }
  static GrantClaims Reader() { return {.role = "reader", .expires = absl::Now() + absl::Hours(1)}; }

  const JobKey key_ = JobKey::Make();
  GrantChecker checker_{GrantKey(key_)};
  std::string id_;  // of the last grant
};

TEST_F(GrantCheckerTest, AGrantOfTheJobIsGoodUntilItExpires) {
  EXPECT_THAT(checker_.Check(CallerOf(Reader())), IsOk());
  GrantClaims old = Reader();
  old.expires = absl::Now() - absl::Seconds(2);
  EXPECT_THAT(checker_.Check(CallerOf(old)),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("has expired on")));
  EXPECT_THAT(checker_.Check(JobKey::Make().Identify({})), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(GrantCheckerTest, CallersAreNotServedBeforeTheStoreHasSaidWhatIsRevoked) {
  std::vector<std::function<void(GrantChecker::RevokedIds)>> asked;
  checker_.SetFetch([&](auto done) { asked.push_back(std::move(done)); });
  const Caller caller = CallerOf(Reader());
  EXPECT_THAT(checker_.Check(caller), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(checker_.Check(caller), StatusIs(absl::StatusCode::kUnavailable));
  ASSERT_EQ(asked.size(), 1u);  // one question at a time
  asked[0](std::vector<std::string>{"0000000000000000"});
  EXPECT_THAT(checker_.Check(caller), IsOk());
}

TEST_F(GrantCheckerTest, ARevokedGrantIsRefusedByItsId) {
  const Caller caller = CallerOf(Reader());
  checker_.SetFetch([&](const auto& done) { done(std::vector<std::string>{id_}); });
  EXPECT_THAT(checker_.Check(caller), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(id_)));
  EXPECT_THAT(checker_.Check(CallerOf(Reader())), IsOk());
}

TEST_F(GrantCheckerTest, AStoreThatDoesNotAnswerTheFirstQuestionLetsNobodyIn) {
  checker_.SetFetch([](const auto& done) { done(absl::UnavailableError("away")); });
  EXPECT_THAT(checker_.Check(CallerOf(Reader())), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(GrantCheckerTest, AnAnswerAfterTheCheckersEndIsHarmless) {
  std::function<void(GrantChecker::RevokedIds)> late;
  {
    GrantChecker checker(GrantKey(key_));
    checker.SetFetch([&](auto done) { late = std::move(done); });
    (void)checker.Check(CallerOf(Reader()));
  }
  late(std::vector<std::string>{});
}

TEST_F(GrantCheckerTest, AQuotaOfCallsRefusesTheNextOneAndSaysWhenThereIsMore) {
  GrantClaims claims = Reader();
  claims.calls_per_second = 0.01;  // so slow that a loaded machine refills nothing
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto holder, checker_.Check(CallerOf(claims)));
  EXPECT_THAT(holder->TakeCall(1), IsOk());
  EXPECT_THAT(holder->TakeCall(1),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("there is some in")));
}

TEST_F(GrantCheckerTest, AQuotaOfBytesMayBeOverdrawnByOneResponse) {
  GrantClaims claims = Reader();
  claims.bytes_per_second = 1;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto holder, checker_.Check(CallerOf(claims)));
  EXPECT_THAT(holder->TakeCall(1), IsOk());
  holder->TakeBytes(1'000'000);
  EXPECT_THAT(holder->TakeCall(0), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(GrantCheckerTest, AllConnectionsOfAHolderShareItsQuota) {
  GrantClaims claims = Reader();
  claims.calls_per_second = 0.01;
  const Caller caller = CallerOf(claims);
  EXPECT_THAT((*checker_.Check(caller))->TakeCall(1), IsOk());
  EXPECT_THAT((*checker_.Check(caller))->TakeCall(1), StatusIs(absl::StatusCode::kResourceExhausted));
}

// The signature covers the claims; the bytes around them can be written in many ways.
TEST_F(GrantCheckerTest, AGrantThatIsEncodedAnewHasNoFreshQuota) {
  GrantClaims claims = Reader();
  claims.calls_per_second = 0.01;
  const Caller caller = CallerOf(claims);
  EXPECT_THAT((*checker_.Check(caller))->TakeCall(1), IsOk());
  Caller padded = caller;
  padded.token += std::string("\x78\x01", 2);  // field 15, which no one knows
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto holder, checker_.Check(padded));
  EXPECT_THAT(holder->TakeCall(1), StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace tandem::rpc
