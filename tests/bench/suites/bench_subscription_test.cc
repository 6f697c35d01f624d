// SPDX-License-Identifier: Apache-2.0
// tandem bench subscription: real runs at small sizes.

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
using testing::RunTandem;
using Json = nlohmann::json;

TEST(BenchSubscriptionTest, ASubscriberGetsEveryRowAndThenTheChanges) {
  const Finished finished =
      RunTandem({"bench", "subscription", "--rows", "20000", "--dim", "4", "--batch", "100", "--seconds",
                 "0.3", "--rounds", "2", "--interval-ms", "5", "--json"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const Json result = ParseJson(finished.out);
  ASSERT_FALSE(result.is_discarded()) << finished.out;
  EXPECT_EQ(result["first_bytes"].get<uint64_t>(),
            20001u * 4 * sizeof(float));  // one more row is that of the marks
  for (const char* figure : {"first_s", "one_row_ms", "fresh_ms", "fresh_p99_ms", "given_rows_per_s",
                             "pushed_rows_per_s", "ratio", "push_ms_with"}) {
    EXPECT_GT(result[figure].get<double>(), 0) << figure;
  }
}

TEST(BenchSubscriptionTest, WithoutJsonItIsForReading) {
  const Finished finished = RunTandem({"bench", "subscription", "--rows", "1001", "--dim", "7", "--seconds",
                                       "0.1", "--rounds", "1", "--interval-ms", "1"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("1001 of 7 x f32"));
  EXPECT_THAT(finished.out, HasSubstr("instead of"));
}

}  // namespace
}  // namespace tandem::bench
