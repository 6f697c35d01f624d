// SPDX-License-Identifier: Apache-2.0
// tandem bench rows: real runs at small sizes.

#include <set>
#include <string>
#include <vector>

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
using Json = nlohmann::json;

Finished BenchRows(std::vector<std::string> flags) {
  if (!::testing::Matches(::testing::Contains("--seconds"))(flags)) {
    flags.insert(flags.end(), {"--seconds", "0.02"});
  }
  flags.insert(flags.begin(), {"bench", "rows"});
  return RunTandem(flags);
}

TEST(BenchRowsTest, OneObjectTellsWhatRowsTakeAndHowFastTheyAre) {
  const Finished finished = BenchRows({"--rows", "200000", "--dim", "16", "--row-type", "f16", "--optimizer",
                                       "rowwise_adagrad", "--batch", "1000", "--threads", "2", "--json"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  ASSERT_EQ(Lines(finished.out).size(), 1u);
  const Json result = ParseJson(finished.out);
  ASSERT_FALSE(result.is_discarded()) << finished.out;
  std::set<std::string> fields;
  for (const auto& [name, value] : result.items()) fields.insert(name);
  EXPECT_EQ(fields, std::set<std::string>({"rows", "dim", "row_type", "optimizer", "batch", "threads",
                                           "payload_bytes", "load_rows_per_s", "lookup_rows_per_s",
                                           "update_rows_per_s", "table_bytes", "bytes_per_row",
                                           "resident_bytes", "load_longest_pause_us", "longest_pause_us"}));
  EXPECT_EQ(result["rows"], 200000);
  EXPECT_EQ(result["payload_bytes"], 2 * 16 + 4);
  for (const char* rate : {"load_rows_per_s", "lookup_rows_per_s", "update_rows_per_s"}) {
    EXPECT_GT(result[rate].get<double>(), 0) << rate;
  }
  const double bytes_per_row = result["bytes_per_row"];
  EXPECT_GT(bytes_per_row, 36 + 16);
  // Payload, the old and the new index while they grow, and the memory of the calls.
  EXPECT_LT(bytes_per_row, 36 + 16 * 4 + 10);
  EXPECT_GT(result["resident_bytes"].get<double>(), 200000 * 36);
  EXPECT_LE(result["load_longest_pause_us"].get<double>(), result["longest_pause_us"].get<double>());
}

TEST(BenchRowsTest, WithoutJsonItIsForReading) {
  const Finished finished = BenchRows({"--rows", "1001", "--dim", "7", "--batch", "100"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("1001 of 7 x f32, adagrad: 56 bytes of payload"));
  EXPECT_THAT(finished.out, HasSubstr("bytes a row"));
  EXPECT_THAT(finished.out, HasSubstr("longest pause"));
}

TEST(BenchRowsTest, MoreRowsThanThereIsMemoryForAreRefusedBeforeAnyIsMade) {
  const Finished finished = BenchRows({"--rows", "100000000000", "--dim", "512"});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_EQ(finished.out, "");
  EXPECT_THAT(finished.err, HasSubstr("ask for fewer --rows"));
}

TEST(BenchRowsTest, WrongFlagsAreRefusedByName) {
  const struct {
    std::vector<std::string> flags;
    std::string message;
  } cases[] = {{{"--rows", "0"}, "--rows: 0 is not a number in [1, 1000000000000]"},
               {{"--batch", "0"}, "--batch: 0 is not a number in [1, 2^24]"},
               {{"--batch", "100000000"}, "--batch: 100000000 is not a number in [1, 2^24]"},
               {{"--threads", "0"}, "--threads: 0 is not a number in [1, 1024]"},
               {{"--seconds", "-1"}, "--seconds: -1 is not a number in (0, 3600]"},
               {{"--row-type", "f8"}, "--row-type is 'f8'; it must be f32, f16 or bf16"},
               {{"--optimizer", "adamax"}, "--optimizer is 'adamax'; it must be sgd"},
               {{"--dim", "0"}, "--dim: 0 is not a number in [1, 4096]"}};
  for (const auto& c : cases) {
    const Finished finished = BenchRows(c.flags);
    EXPECT_EQ(finished.exit_code, 2) << c.message;
    EXPECT_THAT(finished.err, HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace tandem::bench
