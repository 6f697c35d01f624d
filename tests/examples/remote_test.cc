// SPDX-License-Identifier: Apache-2.0
// Tests that the examples of remote functions run, each in its own processes.

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

void Runs(const std::string& program, const std::string& says) {
  testing::TempDir directory;
  const testing::Finished run =
      testing::RunTandem({"run", "--workers", "3", "--", program}, {}, directory.path());
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr(says));
}

TEST(RemoteExamplesTest, TheParameterServerOfRemoteFunctionsLearns) {
  Runs(TANDEM_PARAMETER_SERVER_BINARY, "2 trainers, one model: done");
}

TEST(RemoteExamplesTest, ThePipelineLearns) { Runs(TANDEM_PIPELINE_BINARY, "3 layers at 2 owners"); }

}  // namespace
}  // namespace tandem
