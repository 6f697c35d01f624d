// SPDX-License-Identifier: Apache-2.0
// tandem bench checkpoint: real runs at small sizes.

#include <string>
#include <vector>

#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::bench {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using testing::RunTandem;
using Json = nlohmann::json;

TEST(BenchCheckpointTest, AnIncrementHoldsTheRowsThatHaveChangedAndBothAreRestored) {
  const testing::TempDir directory;
  const Finished finished =
      RunTandem({"bench", "checkpoint", "--rows", "200000", "--dim", "16", "--row-type", "f16", "--optimizer",
                 "rowwise_adagrad", "--touched", "0.01", "--dir", directory.File("root"), "--json"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const Json result = ParseJson(finished.out);
  ASSERT_FALSE(result.is_discarded()) << finished.out;
  EXPECT_EQ(result["touched_rows"], 2000);
  EXPECT_GT(result["full_bytes"].get<uint64_t>(), 200000u * (2 * 16 + 4 + 8));
  EXPECT_GT(result["delta_bytes"].get<uint64_t>(), 2000u * (2 * 16 + 4 + 8));
  EXPECT_LT(result["delta_bytes"].get<uint64_t>(), result["full_bytes"].get<uint64_t>() / 20);
  for (const char* seconds : {"full_s", "delta_s", "restore_s"}) {
    EXPECT_GT(result[seconds].get<double>(), 0) << seconds;
  }
}

TEST(BenchCheckpointTest, WithoutJsonItIsForReading) {
  const testing::TempDir directory;
  const Finished finished =
      RunTandem({"bench", "checkpoint", "--rows", "1001", "--dim", "7", "--dir", directory.File("root")});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("1001 of 7 x f32, adagrad"));
  EXPECT_THAT(finished.out, HasSubstr("10 rows had changed"));
}

TEST(BenchCheckpointTest, ADirectoryThatCannotBeMadeIsNamed) {
  const Finished finished = RunTandem({"bench", "checkpoint", "--rows", "10", "--dir", "/proc/none/root"});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("/proc/none"));
}

}  // namespace
}  // namespace tandem::bench
