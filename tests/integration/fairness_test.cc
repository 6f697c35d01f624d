// A worker that pushes without pause must not starve another's pulls.

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/tandem_process.h"

namespace tandem {
namespace {

constexpr double kMostTimesIdle = 5;
// A neighbour on the machine may fall into any one launch.
constexpr int kLaunches = 5;

TEST(FairnessTest, PullsBesideAPushingWorkerKeepTheirTailWithinFiveTimesIdle) {
  std::vector<double> ratios;
  for (int launch = 0; launch < kLaunches; ++launch) {
    const testing::Finished finished = testing::RunTandem(
        {"bench", "ps", "--op", "fairness", "--transport", "tcp", "--rows", "100000", "--ids", "4096",
         "--dim", "64", "--in-flight", "8", "--distribution", "uniform", "--time-per-case", "100", "--json"});
    ASSERT_EQ(finished.exit_code, 0) << finished.err;
    const auto result = nlohmann::json::parse(finished.out, nullptr, /*allow_exceptions=*/false);
    ASSERT_FALSE(result.is_discarded()) << finished.out;
    EXPECT_GT(result["pushed_keys_per_s"].get<double>(), 0);
    ratios.push_back(result["p99_ratio"].get<double>());
    if (ratios.back() <= kMostTimesIdle) return;
  }
  ADD_FAILURE() << "loaded over idle p99 of pulls: " << ::testing::PrintToString(ratios);
}

}  // namespace
}  // namespace tandem
