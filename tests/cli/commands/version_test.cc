// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::cli {
namespace {

using ::testing::Contains;
using testing::Finished;
using ::testing::HasSubstr;
using testing::RunTandem;
using ::testing::StartsWith;

TEST(VersionTest, SaysCommitBuildAndBackends) {
  const Finished finished = RunTandem({"--version"});
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_THAT(finished.out, StartsWith("tandem 0."));
  for (const char* text : {"\ncommit ", "\nbuild ", "\nbackends  shm, "})
    EXPECT_THAT(finished.out, HasSubstr(text));
  EXPECT_EQ(RunTandem({"version"}).out, finished.out);
}

TEST(VersionTest, JsonIsOneObject) {
  const nlohmann::json version = nlohmann::json::parse(RunTandem({"version", "--json"}).out);
  EXPECT_THAT(version["version"].get<std::string>(), StartsWith("0."));
  EXPECT_NE(version["commit"], "");
  EXPECT_THAT(version["backends"], Contains("shm"));
  EXPECT_TRUE(version["spill"].is_boolean());
}

}  // namespace
}  // namespace tandem::cli
