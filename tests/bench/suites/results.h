// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_BENCH_SUITES_RESULTS_H_
#define TANDEM_TESTS_BENCH_SUITES_RESULTS_H_

#include <string>
#include <vector>

#include "base/json.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::bench {

// Parses the output of `tandem bench --json`: one object per line.
inline std::vector<nlohmann::json> Results(const testing::Finished& finished) {
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  std::vector<nlohmann::json> results;
  for (const std::string& line : testing::Lines(finished.out)) {
    results.push_back(ParseJson(line));
    EXPECT_FALSE(results.back().is_discarded()) << "not JSON: " << line;
  }
  return results;
}

}  // namespace tandem::bench

#endif  // TANDEM_TESTS_BENCH_SUITES_RESULTS_H_
