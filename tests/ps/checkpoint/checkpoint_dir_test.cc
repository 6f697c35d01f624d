// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/checkpoint_dir.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_format.h"
#include "base/checksummed_file.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CheckpointDir : public ::testing::Test {
 protected:
  CheckpointDir() : root_(dir_.File("runs/ckpt")) {}
  // A checkpoint with one file of `text`.
  std::string Make(uint64_t step, const std::string& text = "rows", const std::string& run_id = "") {
    const absl::StatusOr<std::string> unfinished = BeginCheckpoint(root_, step);
    if (!unfinished.ok()) return unfinished.status().ToString();
    std::ofstream(*unfinished + "/user.0-of-1.table") << text;
    v1::CheckpointManifest manifest;
    manifest.set_job_name("job");
    manifest.set_run_id(run_id);
    manifest.set_step(step);
    manifest.set_job_text("name: \"job\"\nlines: 2\n");
    (*manifest.mutable_metrics())["auc"] = 0.75;
    const absl::StatusOr<std::string> path = CommitCheckpoint(*unfinished, manifest);
    return path.ok() ? *path : path.status().ToString();
  }
  std::vector<uint64_t> Steps() {
    const absl::StatusOr<std::vector<CheckpointEntry>> entries = ListCheckpoints(root_);
    std::vector<uint64_t> steps;
    for (const CheckpointEntry& entry : *entries) steps.push_back(entry.step);
    return steps;
  }
  const TempDir dir_;
  const std::string root_;
};

TEST_F(CheckpointDir, CommitsUnderTheStepsNameWithAManifestOfItsFiles) {
  EXPECT_THAT(Steps(), IsEmpty());
  EXPECT_THAT(LatestCheckpoint(root_), StatusIs(absl::StatusCode::kNotFound, HasSubstr(root_)));
  EXPECT_EQ(Make(1234), root_ + "/step-000000001234");
  EXPECT_EQ(Make(99), root_ + "/step-000000000099");
  EXPECT_THAT(Steps(), ElementsAre(99, 1234));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string latest, LatestCheckpoint(root_));
  EXPECT_EQ(latest, root_ + "/step-000000001234");
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::CheckpointManifest manifest, ReadManifest(latest));
  EXPECT_EQ(manifest.format_version(), 1);
  EXPECT_EQ(manifest.job_text(), "name: \"job\"\nlines: 2\n");
  EXPECT_EQ(manifest.metrics().at("auc"), 0.75);
  ASSERT_EQ(manifest.files_size(), 1);
  EXPECT_EQ(manifest.files(0).name(), "user.0-of-1.table");
  EXPECT_EQ(manifest.files(0).bytes(), 4);
  EXPECT_EQ(manifest.files(0).crc32(), Crc32("rows"));
  TANDEM_EXPECT_OK(VerifyCheckpoint(latest));
  // Readable by people.
  EXPECT_THAT(*ReadFile(latest + "/MANIFEST"), HasSubstr("step: 1234\n"));
}

TEST_F(CheckpointDir, WhatIsUnfinishedIsNeverListedAndCleanedByTheNextBegin) {
  Make(1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string crashed, BeginCheckpoint(root_, 2));
  std::ofstream(crashed + "/half") << "x";
  EXPECT_THAT(Steps(), ElementsAre(1));
  TANDEM_ASSERT_OK(BeginCheckpoint(root_, 3));
  EXPECT_FALSE(std::filesystem::exists(crashed));
  EXPECT_THAT(Steps(), ElementsAre(1));
}

TEST_F(CheckpointDir, TheSameStepAgainReplacesTheCheckpoint) {
  Make(7, "old");
  const std::string path = Make(7, "newer");
  EXPECT_EQ(*ReadFile(path + "/user.0-of-1.table"), "newer");
  TANDEM_EXPECT_OK(VerifyCheckpoint(path));
  EXPECT_THAT(Steps(), ElementsAre(7));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root_), {}), 1);
}

TEST_F(CheckpointDir, OnlyWhatBeginMadeCanBeCommitted) {
  EXPECT_THAT(CommitCheckpoint(dir_.File("somewhere"), {}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ReadManifest(dir_.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("not a checkpoint")));
}

TEST_F(CheckpointDir, VerifyNamesTheFileThatIsWrong) {
  const std::string path = Make(1, "some rows");
  const std::string file = path + "/user.0-of-1.table";
  std::ofstream(file) << "sOme rows";
  EXPECT_THAT(VerifyCheckpoint(path),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("user.0-of-1.table is damaged")));
  std::ofstream(file) << "some";
  EXPECT_THAT(VerifyCheckpoint(path),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("4 bytes, the manifest says 9")));
  std::filesystem::remove(file);
  EXPECT_THAT(VerifyCheckpoint(path), StatusIs(absl::StatusCode::kNotFound, HasSubstr("user.0-of-1.table")));
}

// A checkpoint from somebody else has a right CRC and may say anything.
TEST_F(CheckpointDir, AManifestThatNamesFilesElsewhereIsRefused) {
  const std::string path = Make(1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::CheckpointManifest good, ReadManifest(path));
  const auto write = [&](const v1::CheckpointManifest& manifest) {
    std::string text;
    ASSERT_TRUE(google::protobuf::TextFormat::PrintToString(manifest, &text));
    std::ofstream(path + "/MANIFEST") << text << absl::StrFormat("# crc32: %08x\n", Crc32(text));
  };
  for (const std::string& name :
       {std::string("../victim"), std::string("/etc/passwd"), std::string("a/b"), std::string("."),
        std::string(".."), std::string(), std::string("a\nb"), std::string("a\0b", 3),
        std::string("MANIFEST"), std::string(300, 'x'), std::string("user.0-of-1.table")}) {
    v1::CheckpointManifest bad = good;
    bad.add_files()->set_name(name);
    write(bad);
    const auto refused =
        StatusIs(absl::StatusCode::kDataLoss, ::testing::AllOf(HasSubstr(path), HasSubstr("lists a file")));
    EXPECT_THAT(ReadManifest(path), refused) << name;
    EXPECT_THAT(VerifyCheckpoint(path), refused) << name;
  }
  for (const std::string& base :
       {std::string("../step-000000000001"), std::string("/tmp"), std::string("step-1/x")}) {
    v1::CheckpointManifest bad = good;
    bad.set_base(base);
    write(bad);
    EXPECT_THAT(ReadManifest(path), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("builds on"))) << base;
  }
  write(good);
  TANDEM_EXPECT_OK(VerifyCheckpoint(path));
}

TEST_F(CheckpointDir, AManifestThatWasTouchedOrCutIsFound) {
  const std::string path = Make(1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFile(path + "/MANIFEST"));
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] ^= 1;
    std::ofstream(path + "/MANIFEST") << damaged;
    ASSERT_THAT(ReadManifest(path), StatusIs(absl::StatusCode::kDataLoss)) << i;
    std::ofstream(path + "/MANIFEST") << text.substr(0, i);
    ASSERT_THAT(ReadManifest(path), StatusIs(absl::StatusCode::kDataLoss)) << i;
  }
  EXPECT_THAT(Steps(), IsEmpty());
}

TEST_F(CheckpointDir, PruneKeepsTheNewestAndTheProtectedOne) {
  for (uint64_t step = 1; step <= 6; ++step) Make(step);
  TANDEM_ASSERT_OK(PruneCheckpoints(root_, 2, root_ + "/step-000000000002"));
  EXPECT_THAT(Steps(), ElementsAre(2, 5, 6));
  TANDEM_ASSERT_OK(PruneCheckpoints(root_, 10, ""));
  EXPECT_THAT(Steps(), ElementsAre(2, 5, 6));
  TANDEM_ASSERT_OK(PruneCheckpoints(root_, 0, ""));
  EXPECT_THAT(Steps(), IsEmpty());
  TANDEM_EXPECT_OK(PruneCheckpoints(dir_.File("nowhere"), 1, ""));
}

TEST_F(CheckpointDir, PruneLeavesTheCheckpointsOfOtherRuns) {
  for (uint64_t step : {10, 20, 30}) Make(step, "rows", "old");
  for (uint64_t step : {1, 2, 3}) Make(step, "rows", "mine");
  TANDEM_ASSERT_OK(PruneCheckpoints(root_, 1, "", "mine"));
  EXPECT_THAT(Steps(), ElementsAre(3, 10, 20, 30));
}

TEST_F(CheckpointDir, WhatTheServersWroteMustBeThereAndIsNotReadAgain) {
  const auto begin = [&] {
    const absl::StatusOr<std::string> unfinished = BeginCheckpoint(root_, 5);
    EXPECT_TRUE(unfinished.ok()) << unfinished.status();
    std::ofstream(*unfinished + "/user.0-of-1.table") << "some rows";
    return *unfinished;
  };
  v1::SavedFile file;
  file.set_name("user.0-of-1.table");
  file.set_bytes(9);
  file.set_crc32(77);  // not that of the file: it is taken as it is
  file.set_clock(3);
  file.set_footer_crc32(4);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string path, CommitCheckpoint(begin(), {}, {file}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::CheckpointManifest manifest, ReadManifest(path));
  ASSERT_EQ(manifest.files_size(), 1);
  EXPECT_EQ(manifest.files(0).crc32(), 77u);
  EXPECT_EQ(manifest.files(0).clock(), 3u);
  EXPECT_EQ(manifest.files(0).footer_crc32(), 4u);
  v1::SavedFile shorter = file;
  shorter.set_bytes(8);
  EXPECT_THAT(CommitCheckpoint(begin(), {}, {shorter}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has 9 bytes here; its server wrote 8")));
  v1::SavedFile missing = file;
  missing.set_name("user.1-of-2.table");
  EXPECT_THAT(CommitCheckpoint(begin(), {}, {file, missing}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("user.1-of-2.table is missing")));
  EXPECT_EQ(ReadManifest(path)->files(0).crc32(), 77u);  // the committed one is as it was
}

TEST_F(CheckpointDir, AnUpdatedManifestKeepsItsFiles) {
  const std::string path = Make(1);
  v1::CheckpointManifest manifest = *ReadManifest(path);
  manifest.set_epoch(7);
  manifest.clear_files();
  TANDEM_ASSERT_OK(UpdateManifest(path, manifest));
  EXPECT_EQ(ReadManifest(path)->epoch(), 7u);
  TANDEM_EXPECT_OK(VerifyCheckpoint(path));
  EXPECT_EQ(ReadManifest(path)->files_size(), 1);
}

TEST_F(CheckpointDir, SizesAreCheckedWithoutReading) {
  const std::string path = Make(1, "some rows");
  const v1::CheckpointManifest manifest = *ReadManifest(path);
  TANDEM_EXPECT_OK(CheckSizes(path, manifest));
  std::filesystem::resize_file(path + "/user.0-of-1.table", 3);
  EXPECT_THAT(CheckSizes(path, manifest), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("cut off")));
  std::filesystem::remove(path + "/user.0-of-1.table");
  EXPECT_THAT(CheckSizes(path, manifest), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("No such file")));
}

TEST_F(CheckpointDir, ADamagedOneIsFoundByPathAndCanBeSetAside) {
  Make(1);
  std::ofstream(Make(2) + "/MANIFEST") << "junk";
  EXPECT_THAT(Steps(), ElementsAre(1));
  EXPECT_THAT(*CheckpointPaths(root_),
              ElementsAre(root_ + "/step-000000000001", root_ + "/step-000000000002"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string aside, SetAside(root_ + "/step-000000000002"));
  EXPECT_EQ(aside, root_ + "/damaged-step-000000000002");
  EXPECT_THAT(*CheckpointPaths(root_), ElementsAre(root_ + "/step-000000000001"));
  Make(2);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string second, SetAside(root_ + "/step-000000000002"));
  EXPECT_EQ(second, aside + "-2");
  TANDEM_ASSERT_OK(BeginCheckpoint(root_, 3));
  EXPECT_TRUE(std::filesystem::exists(aside));
}

TEST_F(CheckpointDir, AReplacementThatACrashInterruptedIsUndone) {
  const std::string path = Make(4);
  std::filesystem::rename(path, root_ + "/replaced-step-000000000004");
  EXPECT_THAT(Steps(), IsEmpty());
  TANDEM_ASSERT_OK(RepairCheckpoints(root_));
  EXPECT_THAT(Steps(), ElementsAre(4));
  TANDEM_EXPECT_OK(VerifyCheckpoint(path));
}

TEST_F(CheckpointDir, ARootThatCannotBeAccessedIsAnErrorAndNotEmpty) {
  // The file system refuses a name of this length, also to root.
  EXPECT_FALSE(ListCheckpoints(dir_.File(std::string(300, 'x'))).ok());
}

TEST_F(CheckpointDir, DenseStateComesBackAndDamageIsFoundAtEveryByte) {
  v1::DenseState state;
  v1::DenseBlock* block = state.add_parameters();
  block->set_name("w");
  block->add_shape(2);
  block->set_values(std::string(8, '\1'));
  state.set_optimizer("adam");
  state.set_optimizer_steps(3);
  TANDEM_ASSERT_OK(WriteDenseState(dir_.path(), state));
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::DenseState read, ReadDenseState(dir_.path()));
  EXPECT_EQ(read.SerializeAsString(), state.SerializeAsString());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFile(dir_.File("DENSE")));
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] ^= 32;
    std::ofstream(dir_.File("DENSE"), std::ios::binary) << damaged;
    ASSERT_THAT(ReadDenseState(dir_.path()), StatusIs(absl::StatusCode::kDataLoss)) << i;
    std::ofstream(dir_.File("DENSE"), std::ios::binary) << bytes.substr(0, i);
    ASSERT_THAT(ReadDenseState(dir_.path()), StatusIs(absl::StatusCode::kDataLoss)) << i;
  }
}

}  // namespace
}  // namespace tandem::ps
