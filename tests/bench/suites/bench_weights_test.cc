// SPDX-License-Identifier: Apache-2.0
// tandem bench weights: real runs at small sizes.

#include <set>
#include <string>

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

TEST(BenchWeightsTest, EachTransportPublishesPullsAndAsksForTheHead) {
  const Finished finished =
      RunTandem({"bench", "weights", "--bytes", "4096", "--time-per-case", "5", "--json"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  std::set<std::string> cases;
  for (const auto& line : Lines(finished.out)) {
    const nlohmann::json result = ParseJson(std::string(line));
    ASSERT_FALSE(result.is_discarded()) << line;
    const std::string op = result["op"];
    cases.insert(result["transport"].get<std::string>() + " " + op);
    EXPECT_EQ(result["bytes"], 4096);
    EXPECT_GT(result["calls_per_s"].get<double>(), 0);
    EXPECT_EQ(result.contains("gbps"), op != "head");
    EXPECT_LE(result["median_us"].get<double>(), result["p99_us"].get<double>());
  }
  EXPECT_EQ(cases, std::set<std::string>({"in-process publish", "in-process head", "shm publish", "shm pull",
                                          "shm head", "tcp publish", "tcp pull", "tcp head"}));
}

TEST(BenchWeightsTest, MistakesInFlagsAreNamed) {
  const Finished transport = RunTandem({"bench", "weights", "--transport", "shn"});
  EXPECT_EQ(transport.exit_code, 2);
  EXPECT_THAT(transport.err, HasSubstr("did you mean 'shm'"));
  const Finished bytes = RunTandem({"bench", "weights", "--bytes", "6"});
  EXPECT_EQ(bytes.exit_code, 2);
  EXPECT_THAT(bytes.err, HasSubstr("not a multiple of 4"));
}

}  // namespace
}  // namespace tandem::bench
