// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/synthetic/planted.h"

namespace tandem::cli {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using testing::Lines;
using testing::ReadFile;
using testing::RunTandem;

TEST(DataTest, PlantedLogsAreWrittenWithTheirBestPossibleMetrics) {
  testing::TempDir dir;
  const std::string path = dir.File("planted.tsv");
  const Finished finished = RunTandem({"data", "planted", "--rows", "2000", "--out", path});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("best possible AUC"));
  EXPECT_EQ(Lines(ReadFile(path)).size(), 2001u);  // and a header
  TANDEM_ASSERT_OK_AND_ASSIGN(const worker::PlantedSummary summary, worker::ReadPlantedSummary(path));
  EXPECT_EQ(summary.rows, 2000u);
}

TEST(DataTest, OptionsThatMakeNoSenseAreNamed) {
  testing::TempDir dir;
  Finished finished =
      RunTandem({"data", "planted", "--rows", "10", "--sparse", "-1", "--out", dir.File("x.tsv")});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.err, HasSubstr("--sparse: -1 is not a number in [1, 1024]"));
  finished = RunTandem({"data", "planted", "--rows", "10", "--out", dir.File("no/such/x.tsv")});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("no/such"));
}

}  // namespace
}  // namespace tandem::cli
