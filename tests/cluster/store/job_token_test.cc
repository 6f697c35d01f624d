// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/job_token.h"

#include <set>
#include <string>

#include "cluster/environment.h"
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
