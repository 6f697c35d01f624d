// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/overwrite.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OverwriteTest : public ::testing::Test {
 protected:
  OverwriteTest() : root_(dir_.File("ckpt")) {}
  void Make(uint64_t step, const std::string& run_id, absl::optional<uint64_t> best_step = absl::nullopt) {
    const absl::StatusOr<std::string> unfinished = BeginCheckpoint(root_, step);
    TANDEM_ASSERT_OK(unfinished.status());
    v1::CheckpointManifest manifest;
    manifest.set_run_id(run_id);
    manifest.set_step(step);
    if (best_step.has_value()) manifest.set_best_step(*best_step);
    TANDEM_ASSERT_OK(CommitCheckpoint(*unfinished, manifest).status());
  }
  // The checkpoints that a reader sees, as "step run".
  std::vector<std::string> Seen() {
    const absl::StatusOr<std::vector<CheckpointEntry>> entries = ListCheckpoints(root_);
    if (!entries.ok()) return {entries.status().ToString()};
    std::vector<std::string> seen;
    for (const CheckpointEntry& entry : *entries) {
      seen.push_back(absl::StrCat(entry.step, " ", entry.manifest.run_id()));
    }
    return seen;
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root_))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  const testing::TempDir dir_;
  const std::string root_;
};

TEST_F(OverwriteTest, ReadersSeeTheOldRunUntilTheNewOneHasACheckpointAndThenOnlyThat) {
  Make(10, "old");
  Make(30, "old");
  TANDEM_ASSERT_OK(BeginOverwrite(root_, {.run_id = "new"}));
  EXPECT_THAT(Seen(), ElementsAre("10 old", "30 old"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const int none, FinishOverwrite(root_));
  EXPECT_EQ(none, 0);
  Make(20, "new");  // BeginCheckpoint repairs, which must not withdraw the announcement
  EXPECT_THAT(Seen(), ElementsAre("20 new"));  // also if the process dies now
  EXPECT_EQ(*LatestCheckpoint(root_), root_ + "/step-000000000020");
  TANDEM_ASSERT_OK_AND_ASSIGN(const int removed, FinishOverwrite(root_));
  EXPECT_EQ(removed, 2);
  EXPECT_THAT(Names(), ElementsAre("step-000000000020"));
}

TEST_F(OverwriteTest, ACheckpointOfTheSameStepTakesTheOldOnesPlace) {
  Make(10, "old");
  Make(20, "old");
  TANDEM_ASSERT_OK(BeginOverwrite(root_, {.run_id = "new"}));
  Make(10, "new");
  EXPECT_THAT(Seen(), ElementsAre("10 new"));
}

TEST_F(OverwriteTest, ARunThatDiedBetweenCommitAndRemovalIsRepaired) {
  Make(10, "old");
  Make(30, "old");
  TANDEM_ASSERT_OK(BeginOverwrite(root_, {.run_id = "new"}));
  Make(20, "new");
  std::ofstream(root_ + "/step-000000000030/MANIFEST") << "damaged";
  TANDEM_ASSERT_OK(RepairCheckpoints(root_));
  EXPECT_THAT(Names(), ElementsAre("step-000000000020"));
}

TEST_F(OverwriteTest, ARunThatDiedBeforeItsFirstCheckpointLeavesTheOldOne) {
  Make(10, "old");
  TANDEM_ASSERT_OK(BeginOverwrite(root_, {.run_id = "new"}));
  TANDEM_ASSERT_OK(RepairCheckpoints(root_));
  TANDEM_ASSERT_OK(AbandonOverwrite(root_));
  Make(20, "old");
  EXPECT_THAT(Seen(), ElementsAre("10 old", "20 old"));
  EXPECT_THAT(Names(), ElementsAre("step-000000000010", "step-000000000020"));
}

TEST_F(OverwriteTest, ABranchKeepsWhatItContinues) {
  Make(10, "old");
  Make(20, "old");
  Make(40, "old");
  TANDEM_ASSERT_OK(BeginOverwrite(root_, {.run_id = "new", .kept_step = 20}));
  EXPECT_THAT(Seen(), ElementsAre("10 old", "20 old", "40 old"));
  Make(30, "new");
  EXPECT_THAT(Seen(), ElementsAre("10 old", "20 old", "30 new"));
  TANDEM_ASSERT_OK(FinishOverwrite(root_).status());
  EXPECT_THAT(Seen(), ElementsAre("10 new", "20 new", "30 new"));
}

TEST_F(OverwriteTest, ADamagedAnnouncementIsNamed) {
  Make(10, "old");
  std::ofstream(root_ + "/OVERWRITE") << "a b c\n";
  EXPECT_THAT(ListCheckpoints(root_).status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("OVERWRITE")));
}

TEST_F(OverwriteTest, TheBestCheckpointIsThatOfTheNewestOnesChoice) {
  EXPECT_THAT(BestCheckpoint(root_).status(), StatusIs(absl::StatusCode::kNotFound, HasSubstr(root_)));
  Make(10, "run");
  Make(20, "run", 20);
  Make(30, "run", 20);
  EXPECT_EQ(*BestCheckpoint(root_), root_ + "/step-000000000020");
  EXPECT_EQ(*BestCheckpoint(root_ + "/step-000000000010"), root_ + "/step-000000000010");
  Make(40, "run", 35);  // whose checkpoint is gone
  EXPECT_EQ(*BestCheckpoint(root_), root_ + "/step-000000000040");
  Make(50, "run");  // on other data, before its first epoch has ended
  EXPECT_EQ(*BestCheckpoint(root_), root_ + "/step-000000000050");
}

}  // namespace
}  // namespace tandem::ps
