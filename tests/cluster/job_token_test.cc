// SPDX-License-Identifier: Apache-2.0
#include "cluster/job_token.h"

#include <set>
#include <string>

#include "absl/time/time.h"
#include "cluster/environment.h"
#include "cluster/store/store.h"
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

constexpr char kGiven[] = "a-token-of-the-user";

TEST(JobTokenTest, TokensAreRandomAndValid) {
  std::set<std::string> tokens;
  for (int i = 0; i < 100; ++i) {
    const std::string token = NewJobToken();
    EXPECT_THAT(CheckJobToken(token), IsOk());
    EXPECT_NE(token, kTokenElsewhere);
    EXPECT_TRUE(tokens.insert(token).second);
  }
}

TEST(JobTokenTest, AMalformedTokenIsRefusedWithoutShowingIt) {
  const std::string longest(64, 'x');
  EXPECT_THAT(CheckJobToken(longest), IsOk());
  for (const std::string& bad : {std::string("tooshort"), longest + "x", std::string("a token with blanks"),
                                 std::string("sixteen-bytes--\n")}) {
    EXPECT_THAT(CheckJobToken(bad),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("TANDEM_JOB_TOKEN"), HasSubstr("16 to 64"), Not(HasSubstr(bad)))));
  }
}

TEST(JobTokenTest, MembersWithoutTheVariableAgreeInTheStore) {
  MemoryStore store;
  std::string first, second;
  TANDEM_ASSERT_OK(AgreeOnJobToken(&store, &first));
  TANDEM_ASSERT_OK(AgreeOnJobToken(&store, &second));
  EXPECT_THAT(CheckJobToken(first), IsOk());
  EXPECT_EQ(first, second);
  std::string given = kGiven;
  EXPECT_THAT(AgreeOnJobToken(&store, &given),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("TANDEM_JOB_TOKEN"), Not(HasSubstr(kGiven)), Not(HasSubstr(first)))));
}

TEST(JobTokenTest, ATokenOfTheEnvironmentDoesNotComeIntoTheStore) {
  MemoryStore store;
  std::string member = kGiven, another = kGiven, stranger;
  TANDEM_ASSERT_OK(AgreeOnJobToken(&store, &member));
  TANDEM_ASSERT_OK(AgreeOnJobToken(&store, &another));
  TANDEM_ASSERT_OK(AgreeOnJobToken(&store, &stranger));
  EXPECT_EQ(member, kGiven);
  EXPECT_EQ(another, kGiven);
  EXPECT_EQ(stranger, "");
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string stored, store.Get(kJobTokenKey, absl::ZeroDuration()));
  EXPECT_THAT(stored, Not(HasSubstr(kGiven)));
}

TEST(JobTokenTest, TheProcessThatOpensTheStorePresentsTheToken) {
  Environment env;
  env.master_addr = "127.0.0.1";
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto job, OpenStore(env, absl::Seconds(30)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string stored, job->store()->Get(kJobTokenKey, absl::Seconds(30)));
  EXPECT_EQ(job->env().caller().token, stored);
  EXPECT_EQ(env.caller().token, "");
}

TEST(JobTokenTest, TheEnvironmentHasTheToken) {
  const auto env = [](const std::string& token) {
    return Environment::FromLookup([token](absl::string_view name) -> absl::optional<std::string> {
      if (name == "RANK") return "0";
      if (name == "WORLD_SIZE") return "1";
      if (name == "TANDEM_STORE") return "127.0.0.1:1";
      if (name == "TANDEM_JOB_TOKEN") return token;
      return absl::nullopt;
    });
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(const Environment member, env(kGiven));
  EXPECT_EQ(member.caller().token, kGiven);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Environment without, env(""));  // as compose passes an unset variable on
  EXPECT_EQ(without.caller().token, "");
  EXPECT_THAT(env("short").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("TANDEM_JOB_TOKEN")));
}

}  // namespace
}  // namespace tandem::cluster
