// SPDX-License-Identifier: Apache-2.0
// Tests that one binary trains any model on any format, as the command line selects.

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/job_dir.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::integration {
namespace {

constexpr char kJobs[] = TANDEM_SOURCE_DIR "/jobs/";

// A Criteo file: label, 13 integers, 26 hexadecimal categories; some fields are missing. C1 nearly determines
// the label.
std::string CriteoLines(int rows) {
  CounterRandom random(1, 0);
  std::string text;
  for (int i = 0; i < rows; ++i) {
    const uint64_t telling = random.Below(4);
    absl::StrAppend(&text, random.Uniform() < 0.1f + 0.25f * static_cast<float>(telling) ? 1 : 0);
    for (int k = 0; k < 13; ++k) {
      absl::StrAppend(&text, "\t");
      if (random.Below(4) > 0) absl::StrAppend(&text, static_cast<int64_t>(random.Below(300)) - 2);
    }
    absl::StrAppendFormat(&text, "\t%08x", telling);
    for (int k = 1; k < 26; ++k) {
      absl::StrAppend(&text, "\t");
      if (random.Below(5) > 0) absl::StrAppendFormat(&text, "%08x", random.Below(8));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

// Lines "rating user:1 item:1" (rating 2 or 5) or, if `varying`, "click user:1 item:1" (click 0 or 1) with up
// to three more tags.
std::string LibfmLines(int rows, bool varying) {
  CounterRandom random(2, 0);
  std::string text;
  for (int i = 0; i < rows; ++i) {
    const uint64_t user = random.Below(20), item = random.Below(30);
    const bool likes = random.Uniform() < 0.15f + 0.7f * static_cast<float>(item) / 30;
    absl::StrAppend(&text, varying ? (likes ? 1 : 0) : (likes ? 5 : 2), " ", user, ":1 ", 100 + item, ":1");
    for (uint64_t tags = varying ? random.Below(4) : 0; tags > 0; --tags)
      absl::StrAppend(&text, " ", 1000 + 10 * tags + random.Below(5), ":1");
    absl::StrAppend(&text, "\n");
  }
  return text;
}

class ModelsTest : public ::testing::Test {
 protected:
  void ExpectLearns(const std::string& job_file, const std::string& data, const std::string& model,
                    Args args = {}) {
    for (const char* set :
         {"train.epochs=4", "train.batch_size=64", "optimizer.lr=0.01", "embedding.optimizer.lr=0.01"})
      args.insert(args.end(), {"--set", set});
    args.insert(args.end(),
                {"--model", model, "--set", "data.train=" + data, "--set", "checkpoint.dir=" + data + model});
    const Json report = job_.TrainAndReport(2, 2, args, kJobs + job_file);
    if (!report.is_object()) return;
    EXPECT_EQ(report.at("model"), model);
    EXPECT_EQ(report.at("malformed_lines"), 0);
    EXPECT_GT(report.at("test").at("auc"), 0.6) << model << " on " << data;
  }
  const JobDir job_;
};

TEST_F(ModelsTest, DlrmAndDeepFmLearnFromACriteoFile) {
  job_.Write("criteo", CriteoLines(3000));
  for (const char* model : {"dlrm", "deepfm"}) ExpectLearns("criteo_dlrm.yaml", "criteo", model);
}

TEST_F(ModelsTest, DlrmAndDeepFmLearnFromALibfmFileWithFieldsByPosition) {
  job_.Write("equal", LibfmLines(3000, /*varying=*/false));
  for (const char* model : {"dlrm", "deepfm"})
    ExpectLearns("libfm_deepfm.yaml", "equal", model, {"--set", "data.label.threshold=4"});
}

TEST_F(ModelsTest, DlrmAndDeepFmLearnFromALibfmFileWithOneMultiValuedField) {
  job_.Write("varying", LibfmLines(3000, /*varying=*/true));
  for (const char* model : {"dlrm", "deepfm"}) ExpectLearns("libfm_deepfm.yaml", "varying", model);
}

TEST_F(ModelsTest, EveryOtherModelTrains) {
  for (const char* model : {"lr", "fm", "dnn", "wide_deep", "dcn"}) {
    const Json report = job_.TrainAndReport(
        1, 2, {"--model", model, "--set", "train.epochs=1", "--set", "checkpoint.dir=none"});
    ASSERT_TRUE(report.is_object()) << model;
    EXPECT_EQ(report.at("model"), model);
    EXPECT_LT(report.at("epochs")[0].at("train_loss"), 0.75) << model;
  }
}

}  // namespace
}  // namespace tandem::integration
