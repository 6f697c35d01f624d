// SPDX-License-Identifier: Apache-2.0
// The job files that come with Tandem are good ones. Those of `tandem rl`, which have an algorithm, are
// tested in tests/worker/rl/job.

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "worker/job/job_parser.h"

namespace tandem::worker {
namespace {

std::vector<std::string> JobFiles() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(TANDEM_JOBS_DIR)) {
    if (entry.path().extension() != ".yaml") continue;
    const std::string text = ReadFile(entry.path().string()).value_or("");
    if (!absl::StrContains(text, "\nalgorithm:")) files.push_back(entry.path());
  }
  return files;
}

TEST(JobFilesTest, EveryFileIsAJobNamedAfterIt) {
  const std::vector<std::string> files = JobFiles();
  EXPECT_THAT(files, ::testing::SizeIs(::testing::Ge(4)));
  for (const std::string& file : files) {
    absl::StatusOr<JobSpec> job = LoadJob(file);
    TANDEM_EXPECT_OK(job);
    if (job.ok()) {
      EXPECT_EQ(job->name, std::filesystem::path(file).stem());
    }
  }
}

}  // namespace
}  // namespace tandem::worker
