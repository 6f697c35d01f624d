// SPDX-License-Identifier: Apache-2.0
// Runs that resume on other data than that of their checkpoint, and runs that have nothing left to train.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/command_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/digest.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/trainer/training_job.h"
#include "worker/report/report.h"
#include "worker/trainer/scoring.h"
#include "worker/trainer/training_run.h"

namespace tandem::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const RunOptions kFromScratch{.baselines = false};
const RunOptions kResumed{.resume = "latest", .baselines = false};
const RunOptions kOtherData{.resume = "latest", .data_changed = true, .baselines = false};

class OtherDataTest : public TrainingJob {
 protected:
  // Writes a file of clicks with other users and another mean price than clicks.csv.
  std::string WriteDay2(int rows) {
    std::ofstream out(dir_.File("day2.csv"));
    out << "click,user,item,price\n";
    CounterRandom random(6, 6);
    for (int i = 0; i < rows; ++i) {
      const uint64_t user = random.Below(40), item = random.Below(40);
      const double logit = 2.0 - (user % 5) + ((item % 5) - 2.0);
      out << (random.UniformDouble() < 1 / (1 + std::exp(-logit)) ? 1 : 0) << ",v" << user << ",i" << item
          << "," << 500 + random.Below(100) << "\n";
    }
    return absl::StrCat("data.train=", dir_.File("day2.csv"));
  }
  ps::CheckpointEntry Newest() {
    const auto entries = ps::ListCheckpoints(dir_.File("ckpt"));
    return entries.ok() && !entries->empty() ? entries->back() : ps::CheckpointEntry();
  }
  // Expects that a run with these fields is refused, and leaves the checkpoints as they are. Returns the
  // message.
  std::string Refused(const std::vector<std::string>& overrides, const RunOptions& options = kResumed) {
    const auto before = ps::CheckpointPaths(dir_.File("ckpt"));
    const absl::Status status = Run(Job(overrides), 1, 1, options).status();
    EXPECT_TRUE(IsRefusal(status)) << status;
    EXPECT_EQ(*ps::CheckpointPaths(dir_.File("ckpt")), *before);
    return std::string(status.message());
  }
  // Faults by which the job dies after `pushes` pushes.
  static rpc::FaultInjector DieAfter(int pushes) {
    const auto count = std::make_shared<std::atomic<int>>(0);
    return [count, pushes](absl::string_view method, int64_t) -> rpc::Fault {
      if (!absl::EndsWith(method, "/Push") || ++*count <= pushes) return {};
      return {rpc::Fault::Kind::kFailBefore, absl::InternalError("the job dies")};
    };
  }
};

TEST_F(OtherDataTest, ResumingOnAnotherFileIsRefusedAndWithDataChangedAllOfItIsTrained) {
  TANDEM_ASSERT_OK(Run(Job(), 1, 1, kFromScratch).status());
  const ps::CheckpointEntry day1 = Newest();
  const std::string day2 = WriteDay2(3000);
  EXPECT_THAT(Refused({day2}), AllOf(HasSubstr("was trained on other data"), HasSubstr("day2.csv"),
                                     HasSubstr("clicks.csv"), HasSubstr("--data-changed")));
  EXPECT_THAT(Refused({day2}, {.resume = "auto", .baselines = false}), HasSubstr("day2.csv"));
  EXPECT_THAT(Refused({day2}, {.resume = day1.path, .baselines = false}), HasSubstr("day2.csv"));

  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report, Run(Job({day2, "train.epochs=2"}), 1, 1, kOtherData));
  ASSERT_EQ(report.epochs.size(), 2u);
  EXPECT_EQ(report.epochs[0].epoch, 1);
  EXPECT_EQ(report.epochs[0].examples, report.train_examples);
  EXPECT_GT(report.train_examples, 2000u);
  EXPECT_LT(report.train_examples, 2800u);
  EXPECT_GE(report.best_epoch, 1);
  // The steps go on, so that the newest checkpoint is the last one.
  const ps::CheckpointEntry newest = Newest();
  EXPECT_EQ(newest.step, day1.step + report.epochs[0].steps + report.epochs[1].steps);
  EXPECT_EQ(newest.manifest.data_step(), day1.step);
  EXPECT_EQ(newest.manifest.epoch(), 2u);
  // The best model is one of this day's.
  EXPECT_GT(newest.manifest.best_step(), day1.step);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Scores scores, ScoreCheckpoint({.checkpoint = dir_.File("ckpt")}));
  EXPECT_EQ(scores.step, newest.manifest.best_step());
  EXPECT_EQ(scores.checkpoint, report.checkpoint);
  TANDEM_ASSERT_OK_AND_ASSIGN(const ClickMetrics metrics, scores.examples.Evaluate());
  EXPECT_EQ(metrics.logloss, report.test.logloss);
  // Afterwards this is the run's own data.
  EXPECT_THAT(Refused({}), HasSubstr("clicks.csv"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport more, Run(Job({day2, "train.epochs=3"}), 1, 1, kOtherData));
  ASSERT_EQ(more.epochs.size(), 1u);
  EXPECT_EQ(more.epochs[0].epoch, 3);
}

TEST_F(OtherDataTest, APositionWithinAnEpochIsNotOneOfAnotherFile) {
  EXPECT_FALSE(
      Run(Job({"checkpoint.every_steps=10"}), 1, 1, kFromScratch, absl::Seconds(6), DieAfter(45)).ok());
  ASSERT_TRUE(Newest().manifest.has_position());
  const std::string day2 = WriteDay2(3000);
  EXPECT_THAT(Refused({day2}), HasSubstr("day2.csv"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report, Run(Job({day2, "train.epochs=1"}), 1, 1, kOtherData));
  ASSERT_EQ(report.epochs.size(), 1u);
  EXPECT_EQ(report.epochs[0].examples, report.train_examples);
}

TEST_F(OtherDataTest, ARunOnOtherDataThatDiesGoesOnWhereItWasWithTheSameBits) {
  TANDEM_ASSERT_OK(Run(Job({"train.epochs=1"}), 1, 1, kFromScratch).status());
  std::filesystem::copy(dir_.File("ckpt"), dir_.File("whole"), std::filesystem::copy_options::recursive);
  const std::string day2 = WriteDay2(3000), every = "checkpoint.every_steps=5";
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const RunReport whole,
      Run(Job({day2, absl::StrCat("checkpoint.dir=", dir_.File("whole"))}), 1, 1, kOtherData));
  EXPECT_FALSE(Run(Job({day2, every}), 1, 1, kOtherData, absl::Seconds(6), DieAfter(24)).ok());
  EXPECT_GT(Newest().step, Newest().manifest.data_step());
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport rest, Run(Job({day2, every}), 1, 1, kOtherData));
  EXPECT_EQ(rest.test.logloss, whole.test.logloss);
  const auto newest = [&](const char* name) {
    return ps::DigestCheckpoint(*ps::LatestCheckpoint(dir_.File(name)))->dense;
  };
  EXPECT_EQ(newest("ckpt"), newest("whole"));
}

TEST_F(OtherDataTest, EachDifferenceIsNamed) {
  TANDEM_ASSERT_OK(Run(Job({"train.epochs=1"}), 1, 1, kFromScratch).status());
  const std::string more = "train.epochs=2";
  EXPECT_THAT(Refused({more, "data.sparse=[item, user]"}),
              AllOf(HasSubstr("data.sparse has another order"), HasSubstr("'item'"), HasSubstr("'user'")));
  EXPECT_THAT(Refused({more, "data.sparse=[user, price]", "data.dense=[item]"}),
              AllOf(HasSubstr("data.sparse has 'price' instead of 'item'"),
                    HasSubstr("data.dense has 'item' instead of 'price'"), HasSubstr("another directory")));
  EXPECT_THAT(Refused({more, "data.sparse=[user]"}), HasSubstr("data.sparse lacks 'item'"));
  EXPECT_THAT(Refused({more, "data.sparse=[user, {column: item, hash_buckets: 100}]"}),
              HasSubstr("column 'item' of data.sparse is hash_buckets 100, was plain"));
  EXPECT_THAT(Refused({more, "data.dense=[{column: price, transform: log1p}]"}),
              HasSubstr("column 'price' of data.dense is transform log1p, was transform standardize"));
  EXPECT_THAT(Refused({more, "data.label={column: click, threshold: 0.5}"}),
              HasSubstr("data.label is 'click (threshold 0.5)', was 'click'"));
  EXPECT_THAT(Refused({more, "data.split.seed=7"}), HasSubstr("data.split is 'valid"));
  EXPECT_THAT(Refused({more, absl::StrCat("data.valid=", dir_.File("clicks.csv"))}),
              AllOf(HasSubstr("data.valid is 1 file"), HasSubstr("was cut from data.train")));
  EXPECT_THAT(Refused({more, absl::StrCat("data.train=[", dir_.File("clicks.csv"), ", ",
                                          dir_.File("clicks.csv"), "]")}),
              HasSubstr("data.train is 2 files"));
}

TEST_F(OtherDataTest, AFileIsKnownByItsContentsNotByItsName) {
  TANDEM_ASSERT_OK(Run(Job({"train.epochs=1"}), 1, 1, kFromScratch).status());
  std::filesystem::rename(dir_.File("clicks.csv"), dir_.File("moved.csv"));
  const std::string moved = absl::StrCat("data.train=", dir_.File("moved.csv"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report, Run(Job({moved, "train.epochs=2"}), 1, 1, kResumed));
  EXPECT_EQ(report.epochs.size(), 1u);
  std::fstream file(dir_.File("moved.csv"), std::ios::in | std::ios::out);
  file.seekp(-2, std::ios::end);  // the last digit of the last price
  const char digit = file.peek() == '7' ? '8' : '7';
  file.put(digit);
  file.close();
  EXPECT_THAT(Refused({moved, "train.epochs=3"}), HasSubstr("has other contents than it had"));
}

TEST_F(OtherDataTest, TheSeedMattersOnlyWithinAnEpoch) {
  EXPECT_FALSE(
      Run(Job({"checkpoint.every_steps=10"}), 1, 1, kFromScratch, absl::Seconds(6), DieAfter(45)).ok());
  EXPECT_THAT(Refused({"train.seed=2"}),
              AllOf(HasSubstr("in the midst of an epoch"), HasSubstr("train.seed is '2', was '1'")));
  TANDEM_ASSERT_OK(Run(Job({"train.epochs=2"}), 1, 1, kResumed).status());
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report,
                              Run(Job({"train.epochs=3", "train.seed=2"}), 1, 1, kResumed));
  EXPECT_EQ(report.epochs.size(), 1u);
}

TEST_F(OtherDataTest, MeansOfStandardizedColumnsStayThoseOfTheModel) {
  TANDEM_ASSERT_OK(Run(Job({"train.epochs=1"}), 1, 1, kFromScratch).status());
  const v1::DenseInput before = Newest().manifest.input().dense(0);
  EXPECT_NEAR(before.mean(), 50, 5);
  TANDEM_ASSERT_OK(Run(Job({WriteDay2(3000)}), 1, 1, kOtherData).status());
  EXPECT_EQ(Newest().manifest.input().dense(0).mean(), before.mean());
  EXPECT_EQ(Newest().manifest.input().dense(0).scale(), before.scale());
}

TEST_F(OtherDataTest, TheScheduleBeginsAnew) {
  const std::string cosine = "optimizer.schedule={kind: cosine}";
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport first, Run(Job({cosine}), 1, 1, kFromScratch));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport second, Run(Job({cosine, WriteDay2(6000)}), 1, 1, kOtherData));
  ASSERT_EQ(second.epochs.size(), 3u);
  EXPECT_NEAR(second.epochs[0].learning_rate, first.epochs[0].learning_rate,
              0.1 * first.epochs[0].learning_rate);
  EXPECT_LT(second.epochs[2].learning_rate, 0.01 * second.epochs[0].learning_rate);
}

TEST_F(OtherDataTest, OtherValidationDataAloneLeavesTheEpochsAsTheyAre) {
  WriteClicks(dir_.File("valid.csv"), 300);
  const std::string valid = absl::StrCat("data.valid=", dir_.File("valid.csv"));
  TANDEM_ASSERT_OK(Run(Job({valid, "train.epochs=2"}), 1, 1, kFromScratch).status());
  WriteClicks(dir_.File("valid.csv"), 500);
  EXPECT_THAT(Refused({valid}), AllOf(HasSubstr("data.valid"), HasSubstr("the best model then starts anew")));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report, Run(Job({valid}), 1, 1, kOtherData));
  ASSERT_EQ(report.epochs.size(), 1u);
  EXPECT_EQ(report.epochs[0].epoch, 3);
  EXPECT_EQ(report.best_epoch, 3);
}

TEST_F(OtherDataTest, NothingToTrainIsRefusedAndASupervisorIsToldSo) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport first, Run(Job({"train.epochs=2"}), 1, 1, kFromScratch));
  EXPECT_THAT(Refused({"train.epochs=2"}), AllOf(HasSubstr("nothing to train"), HasSubstr("2 of 2 epochs"),
                                                 HasSubstr("--set train.epochs=4"),
                                                 HasSubstr("--data-changed"), HasSubstr("tandem eval")));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport again,
                              Run(Job({"train.epochs=2"}), 1, 1, {.resume = "auto", .baselines = false}));
  EXPECT_THAT(again.epochs, IsEmpty());
  EXPECT_EQ(again.test.logloss, first.test.logloss);
  EXPECT_EQ(again.checkpoint, first.checkpoint);
}

TEST_F(OtherDataTest, ARunThatStoppedEarlyTrainsNoEpochMoreEachTimeItIsResumed) {
  const std::vector<std::string> diverging = {"train.epochs=8",
                                              "train.early_stopping={metric: logloss, patience: 1}",
                                              "optimizer.lr=0.3", "embedding.optimizer={kind: sgd, lr: 30}"};
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport first, Run(Job(diverging), 1, 1, kFromScratch));
  ASSERT_TRUE(first.stopped_early);
  const ps::CheckpointEntry newest = Newest();
  EXPECT_THAT(Refused(diverging), AllOf(HasSubstr("has stopped early"), HasSubstr("patience=2")));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport again,
                              Run(Job(diverging), 1, 1, {.resume = "auto", .baselines = false}));
  EXPECT_TRUE(again.stopped_early);
  EXPECT_THAT(again.epochs, IsEmpty());
  EXPECT_EQ(again.test.logloss, first.test.logloss);
  EXPECT_EQ(Newest().step, newest.step);
  std::vector<std::string> patient = diverging;
  patient[1] = "train.early_stopping={metric: logloss, patience: 2}";
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport more, Run(Job(patient), 1, 1, kResumed));
  EXPECT_THAT(more.epochs, Not(IsEmpty()));
}

TEST_F(OtherDataTest, AModelScoresNoOtherFeaturesThanItsOwn) {
  TANDEM_ASSERT_OK(Run(Job({"train.epochs=1"}), 1, 1, kFromScratch).status());
  for (const char* other :
       {"data.sparse=[item, user]", "data.dense=[{column: item, transform: standardize}]"}) {
    EXPECT_THAT(ScoreCheckpoint({.checkpoint = dir_.File("ckpt"), .set = {other}}).status(),
                tandem::testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("other features")));
  }
}

}  // namespace
}  // namespace tandem::worker
