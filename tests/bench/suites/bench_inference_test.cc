// SPDX-License-Identifier: Apache-2.0
// tandem bench inference: real runs at small sizes.

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::bench {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using testing::Lines;
using testing::RunTandem;

TEST(BenchInferenceTest, ActorsOfEachTransportGetActions) {
  const Finished finished =
      RunTandem({"bench", "inference", "--actors", "1,3", "--rows", "2", "--time-per-case", "50", "--json"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  std::set<std::string> cases;
  for (const auto& line : Lines(finished.out)) {
    const nlohmann::json result = ParseJson(std::string(line));
    ASSERT_FALSE(result.is_discarded()) << line;
    const int actors = result["actors"];
    cases.insert(absl::StrCat(result["transport"].get<std::string>(), " ", actors));
    EXPECT_GT(result["calls_per_s"].get<double>(), 0);
    EXPECT_GT(result["compute_us"].get<double>(), 0);
    EXPECT_GE(result["batch_rows"].get<double>(), 2);
    EXPECT_LE(result["batch_rows"].get<double>(), 2 * actors);
    EXPECT_LE(result["median_us"].get<double>(), result["p99_us"].get<double>());
  }
  EXPECT_EQ(cases, std::set<std::string>({"shm 1", "shm 3", "tcp 1", "tcp 3"}));
}

TEST(BenchInferenceTest, MistakesInFlagsAreNamed) {
  const Finished transport = RunTandem({"bench", "inference", "--transport", "shn"});
  EXPECT_EQ(transport.exit_code, 2);
  EXPECT_THAT(transport.err, HasSubstr("did you mean 'shm'"));
  const Finished actors = RunTandem({"bench", "inference", "--actors", "0"});
  EXPECT_EQ(actors.exit_code, 2);
  EXPECT_THAT(actors.err, HasSubstr("is not a whole number from 1 to 256"));
}

}  // namespace
}  // namespace tandem::bench
