// SPDX-License-Identifier: Apache-2.0
#include "worker/data/repeated_lines.h"

#include <set>

#include "base/random.h"
#include "tests/worker/data/test_files.h"

namespace tandem::worker {
namespace {

double ShareOf(uint64_t texts, uint64_t copies) {
  RepeatedLines lines;
  for (uint64_t copy = 0; copy < copies; ++copy) {
    for (uint64_t text = 0; text < texts; ++text) lines.Add(HashBytes(absl::StrCat(text), 1));
  }
  return lines.Share();
}

TEST(RepeatedLines, AreCountedExactlyWhileTheTextsAreFew) {
  EXPECT_EQ(RepeatedLines().Share(), 0);
  EXPECT_EQ(ShareOf(1000, 1), 0);
  EXPECT_EQ(ShareOf(20, 200), 1 - 20.0 / 4000);
  EXPECT_EQ(ShareOf(1, 1000), 1 - 1.0 / 1000);
}

TEST(RepeatedLines, AreEstimatedFromASampleOfManyTexts) {
  EXPECT_EQ(ShareOf(300000, 1), 0);
  EXPECT_EQ(ShareOf(300000, 4), 0.75) << "all lines of a sampled text count";
  RepeatedLines half;  // every other line is one of 1000 texts
  for (uint64_t i = 0; i < 400000; ++i) {
    half.Add(HashBytes(i % 2 == 0 ? absl::StrCat("new ", i) : absl::StrCat(i % 1000), 1));
  }
  EXPECT_NEAR(half.Share(), 0.5, 0.1);
}

TEST(RepeatedLines, AreReportedByTheDatasetIfTheirTextDecidesTheSplit) {
  const testing::TempDir dir;
  std::string text = "label,n,c\n";
  for (int i = 0; i < 4000; ++i) absl::StrAppend(&text, i % 2, ",", i % 20, ",v", i % 20, "\n");
  DatasetOptions options = {.schema = NumberedSchema(), .train_files = {WriteFile(dir, "a.csv", text)}};
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto by_text, Dataset::Open(options));
  EXPECT_EQ(*by_text->RepeatedShare(), 1 - 20.0 / 4000);
  const uint64_t uneven = *by_text->Count(Split::kTest);
  EXPECT_EQ(uneven % 200, 0u) << "all copies of a line are in the same split";

  options.split_by = SplitBy::kPosition;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto by_position, Dataset::Open(options));
  EXPECT_EQ(*by_position->RepeatedShare(), 0) << "nothing to warn of";
  EXPECT_NEAR(static_cast<double>(*by_position->Count(Split::kTest)), 400, 100);
  EXPECT_NEAR(static_cast<double>(*by_position->Count(Split::kValid)), 400, 100);
  // Every split has all texts.
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    const std::vector<int> all = ReadAll(by_position.get(), {.split = split}).All();
    EXPECT_EQ(all.size(), *by_position->Count(split));
    EXPECT_EQ(std::set<int>(all.begin(), all.end()).size(), 20u);
  }
}

}  // namespace
}  // namespace tandem::worker
