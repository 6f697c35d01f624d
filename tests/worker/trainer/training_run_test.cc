// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/training_run.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/table.h"
#include "rpc/channel.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/trainer/training_job.h"

namespace tandem::worker {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::Contains;
using ::testing::HasSubstr;

class TrainingRunTest : public TrainingJob {
 protected:
  std::atomic<bool> changed_{false};
};

TEST_F(TrainingRunTest, LearnsChecksPointsAndReports) {
  TANDEM_ASSERT_OK_AND_ASSIGN(RunReport report,
                              Run(Job(), 2, 2, {.predictions = dir_.File("predictions.tsv")}));
  ASSERT_EQ(report.epochs.size(), 3u);
  EXPECT_GT(report.test.auc, 0.75);
  EXPECT_LT(report.epochs.back().train_loss, report.epochs.front().train_loss);
  EXPECT_EQ(report.workers, 2);
  EXPECT_EQ(report.servers, 2);
  ASSERT_EQ(report.tables.size(), 2u);
  EXPECT_EQ(report.tables[0].rows_per_shard.size(), 2u);
  EXPECT_GT(report.tables[0].rows, 70u);
  ASSERT_EQ(report.baselines.size(), 2u);
  EXPECT_NEAR(report.baselines[1].test.auc, report.test.auc, 0.05);
  TANDEM_ASSERT_OK(ps::VerifyCheckpoint(report.checkpoint));
  std::ifstream predictions(dir_.File("predictions.tsv"));
  uint64_t lines = 0;
  for (std::string line; std::getline(predictions, line);) ++lines;
  EXPECT_EQ(lines, report.test.examples);
}

TEST_F(TrainingRunTest, AResumedRunEndsWhereAnUnbrokenOneDoes) {
  const RunOptions plain{.baselines = false};
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport whole, Run(Job({"train.epochs=4"}), 1, 2, plain));
  const std::string elsewhere = absl::StrCat("checkpoint.dir=", dir_.File("resumed"));
  TANDEM_ASSERT_OK(Run(Job({"train.epochs=2", elsewhere}), 2, 2, plain).status());
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport rest, Run(Job({"train.epochs=4", elsewhere}), 3, 2,
                                                        {.resume = "latest", .baselines = false}));
  ASSERT_EQ(rest.epochs.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(rest.epochs[i].train_loss, whole.epochs[i + 2].train_loss);
    EXPECT_EQ(rest.epochs[i].valid.auc, whole.epochs[i + 2].valid.auc);
  }
  EXPECT_EQ(rest.test.logloss, whole.test.logloss);
}

TEST_F(TrainingRunTest, RunningAveragesOfBatchNormalizationResumeWithTheRun) {
  const RunOptions plain{.baselines = false};
  for (const char* batch_norm : {"local", "sync"}) {
    const std::string variant = absl::StrCat("model.batch_norm=", batch_norm);
    const std::string whole_dir =
        absl::StrCat("checkpoint.dir=", dir_.File(absl::StrCat(batch_norm, "_whole")));
    const std::string half_dir =
        absl::StrCat("checkpoint.dir=", dir_.File(absl::StrCat(batch_norm, "_half")));
    TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport whole,
                                Run(Job({"train.epochs=3", variant, whole_dir}), 1, 2, plain));
    EXPECT_GT(whole.test.auc, 0.75) << batch_norm;
    TANDEM_ASSERT_OK(Run(Job({"train.epochs=1", variant, half_dir}), 1, 2, plain).status());
    TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport rest, Run(Job({"train.epochs=3", variant, half_dir}), 1, 2,
                                                          {.resume = "latest", .baselines = false}));
    ASSERT_EQ(rest.epochs.size(), 2u);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(rest.epochs[i].train_loss, whole.epochs[i + 1].train_loss) << batch_norm;
      EXPECT_EQ(rest.epochs[i].valid.logloss, whole.epochs[i + 1].valid.logloss) << batch_norm;
    }
    EXPECT_EQ(rest.test.logloss, whole.test.logloss) << batch_norm;
    // A model without batch normalization has other blocks.
    EXPECT_THAT(
        Run(Job({"train.epochs=4", half_dir}), 1, 2, {.resume = "latest", .baselines = false}).status(),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dense parameter blocks")));
  }
}

TEST_F(TrainingRunTest, ACheckpointMayTakeLongerThanAnyOtherWait) {
  constexpr absl::Duration kTimeout = absl::Seconds(4);
  const auto slow = [](absl::string_view method, int64_t) -> rpc::Fault {
    if (absl::EndsWith(method, "/SaveCheckpoint")) absl::SleepFor(1.5 * kTimeout);  // simulates a slow disk
    return {};
  };
  TANDEM_EXPECT_OK(
      Run(Job({"train.epochs=1", "train.timeout_seconds=4"}), 1, 2, {.baselines = false}, kTimeout, slow));
}

TEST_F(TrainingRunTest, AJobThatIsStartedAgainTakesItsLatestCheckpointIfThereIsOne) {
  const RunOptions again{.resume = "auto", .baselines = false};
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport first, Run(Job({"train.epochs=2"}), 1, 2, again));
  EXPECT_EQ(first.epochs.size(), 2u);
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport second, Run(Job({"train.epochs=3"}), 1, 2, again));
  ASSERT_EQ(second.epochs.size(), 1u);
  EXPECT_EQ(second.epochs[0].epoch, 3);
}

TEST_F(TrainingRunTest, StopsWhenValidationNoLongerImprovesAndKeepsTheBest) {
  // A learning rate with which training diverges after the first epoch or two.
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const RunReport report,
      Run(Job({"train.epochs=30", "train.early_stopping={metric: logloss, patience: 1}", "optimizer.lr=0.3",
               "embedding.optimizer={kind: sgd, lr: 30}", "checkpoint.keep=1"}),
          1, 1, {.baselines = false}));
  EXPECT_TRUE(report.stopped_early);
  ASSERT_LT(report.epochs.size(), 30u);
  ASSERT_GE(report.best_epoch, 1);
  EXPECT_EQ(report.epochs.size(), static_cast<size_t>(report.best_epoch) + 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto manifest, ps::ReadManifest(report.checkpoint));
  EXPECT_EQ(manifest.epoch(), static_cast<uint64_t>(report.best_epoch));
}

TEST_F(TrainingRunTest, PatienceIsTheNumberOfEpochsInARowWithoutAnImprovement) {
  for (const int patience : {1, 3}) {
    TANDEM_ASSERT_OK_AND_ASSIGN(
        const RunReport report,
        Run(Job({"train.epochs=30",
                 absl::StrCat("train.early_stopping={metric: logloss, patience: ", patience, "}"),
                 "optimizer.lr=0.3", "embedding.optimizer={kind: sgd, lr: 30}"}),
            1, 1, {.overwrite = true, .baselines = false}));
    ASSERT_TRUE(report.stopped_early);
    EXPECT_EQ(report.epochs.size(), static_cast<size_t>(report.best_epoch + patience));
  }
}

TEST_F(TrainingRunTest, WithoutPeriodicCheckpointsTheBestEpochIsKeptAndTested) {
  const std::vector<std::string> diverging = {"train.epochs=6",
                                              "train.early_stopping={metric: logloss, patience: 0}",
                                              "optimizer.lr=0.3", "embedding.optimizer={kind: sgd, lr: 30}"};
  std::vector<std::string> best_only = diverging;
  best_only.push_back("checkpoint.every_epochs=0");
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report, Run(Job(best_only), 1, 1, {.baselines = false}));
  ASSERT_LT(report.best_epoch, 6);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto kept, ps::ListCheckpoints(dir_.File("ckpt")));
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].manifest.epoch(), static_cast<uint64_t>(report.best_epoch));
  EXPECT_EQ(kept[0].path, report.checkpoint);
  std::vector<std::string> all = diverging;
  all.push_back(absl::StrCat("checkpoint.dir=", dir_.File("all")));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport other, Run(Job(all), 1, 1, {.baselines = false}));
  EXPECT_EQ(report.test.logloss, other.test.logloss);
  EXPECT_EQ(report.best_epoch, other.best_epoch);
}

TEST_F(TrainingRunTest, AGlobalBatchIsDividedAmongTheWorkers) {
  const RunOptions plain{.overwrite = true, .baselines = false};
  const std::vector<std::string> of_256 = {"train={mode: sync, global_batch_size: 256, epochs: 2}"};
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport one, Run(Job(of_256), 1, 1, plain));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport two, Run(Job(of_256), 1, 2, plain));
  EXPECT_EQ(one.epochs[0].steps, (one.train_examples + 255) / 256);
  EXPECT_EQ(two.epochs[0].steps, one.epochs[0].steps);
  EXPECT_NEAR(two.epochs[1].train_loss, one.epochs[1].train_loss, 2e-3);
  EXPECT_THAT(Run(Job({"train={mode: sync, global_batch_size: 255}"}), 1, 2, plain).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("train.global_batch_size is 255; it must be a multiple of the number of "
                                 "workers, 2")));
}

TEST_F(TrainingRunTest, WithoutShufflingEveryEpochReadsTheFileInItsOrder) {
  const RunOptions plain{.overwrite = true, .baselines = false};
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport in_order,
                              Run(Job({"data.shuffle=false", "train.epochs=2"}), 1, 2, plain));
  // A shuffle buffer of one example has no choice.
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport no_choice,
                              Run(Job({"data.shuffle_buffer=1", "train.epochs=2"}), 1, 2, plain));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport shuffled, Run(Job({"train.epochs=2"}), 1, 2, plain));
  for (int epoch = 0; epoch < 2; ++epoch) {
    EXPECT_EQ(in_order.epochs[epoch].train_loss, no_choice.epochs[epoch].train_loss);
    EXPECT_NE(in_order.epochs[epoch].train_loss, shuffled.epochs[epoch].train_loss);
  }
}

// Asynchronous training in which the first choice of rows to replicate is made early.
std::vector<std::string> Async(std::vector<std::string> more, const std::string& mode = "async") {
  more.insert(more.end(), {absl::StrCat("train.mode=", mode), "train.hot_rows.first_steps=6",
                           "train.hot_rows.every_steps=6"});
  return more;
}

uint64_t ReplicatedRows(const RunReport& report) {
  uint64_t rows = 0;
  for (const TableReport& table : report.tables) {
    if (table.replication.has_value()) rows += table.replication->rows;
  }
  return rows;
}

TEST_F(TrainingRunTest, RowsThatAreUpdatedOftenAreReplicatedInAsynchronousModes) {
  for (const std::string mode : {"async", "{bounded: 4}", "gba"}) {
    TANDEM_ASSERT_OK_AND_ASSIGN(
        const RunReport report,
        Run(Job(Async({"train.epochs=4", absl::StrCat("checkpoint.dir=", dir_.File(mode.substr(1, 3)))},
                      mode)),
            2, 2, {.baselines = false}));
    // 80 ids in two tables, nearly all of them in every batch of 128.
    EXPECT_GT(ReplicatedRows(report), 100u) << mode;
    for (const TableReport& table : report.tables) {
      ASSERT_TRUE(table.replication.has_value());
      EXPECT_GT(table.replication->served.replicated_ids, table.replication->served.ids / 2);
      EXPECT_GT(table.replication->saved_pull_bytes, 0u);
    }
    EXPECT_GT(report.replica_bytes, 0u);
    EXPECT_GT(report.test.auc, 0.7);
    for (const FeatureReport& feature : report.features) {
      EXPECT_LE(feature.row_staleness.Mean(), kHighRowStaleness) << mode << " " << feature.feature;
    }
    EXPECT_EQ(report.features.size(), 4u);  // two of each table
  }
}

TEST_F(TrainingRunTest, AFeatureThatIsShardedByForceHasStaleRowsAndAWarningThatNamesIt) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report,
                              Run(Job(Async({"embedding.placement=sharded", "wide.sharded_features=[item]"})),
                                  2, 2, {.baselines = false}));
  ASSERT_EQ(report.features.size(), 4u);
  EXPECT_GT(report.features[0].row_staleness.Mean(), 1.0);
  EXPECT_GE(report.features[0].row_staleness.Quantile(0.99), 2u);
  ASSERT_GE(report.warnings.size(), 3u);
  EXPECT_THAT(report.warnings[0], HasSubstr("feature 'user' (table 'embedding') loses quality"));
  EXPECT_THAT(report.warnings[0], HasSubstr("placement: auto"));
  // The wide table replicates the other feature.
  EXPECT_EQ(report.features[3].feature, "item");
  EXPECT_EQ(report.features[3].replicated_share(), 0.0);
  EXPECT_GT(report.features[2].replicated_share(), 0.3);
  EXPECT_FALSE(report.tables[0].replication.has_value());
}

TEST_F(TrainingRunTest, AFeatureWithStaleRowsHasAWarningInModeGbaToo) {
  // An update is one push, and no push is left out. The servers report row staleness with the answer to the
  // push that completes an update.
  for (const std::string mode : {"{kind: gba, gba: 64, global_batch: 1}", "{kind: gba, gba: 64}"}) {
    TANDEM_ASSERT_OK_AND_ASSIGN(
        const RunReport report,
        Run(Job(Async({"embedding.placement=sharded", "wide.placement=sharded"}, mode)), 2, 2,
            {.overwrite = true, .baselines = false}));
    ASSERT_EQ(report.features.size(), 4u);
    EXPECT_GT(report.features[0].row_staleness.rows, 0u) << mode;
    EXPECT_GT(report.features[0].row_staleness.Mean(), kHighRowStaleness) << mode;
    EXPECT_THAT(report.warnings, Contains(HasSubstr("feature 'user' (table 'embedding') loses quality")))
        << mode;
  }
}

TEST_F(TrainingRunTest, ARunWhoseTableLeavesModeSyncWarnsThatItReplicatesNothing) {
  const auto change_mode_once = [this](absl::string_view method, int64_t call) {
    if (absl::EndsWith(method, "/Push") && call > 20 && !changed_.exchange(true)) {
      ps::v1::SetUpdateModeRequest request;
      request.set_table("embedding");
      *request.mutable_update_mode() = ps::Async();
      ps::v1::SetUpdateModeResponse response;
      TANDEM_EXPECT_OK(rpc::CallProto(*cluster_->Channels()[0], "/tandem.v1.ParameterServer/SetUpdateMode",
                                      request, &response, {.timeout = absl::Seconds(30)}));
    }
    return rpc::Fault();
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const RunReport report,
      Run(Job({"train.mode=sync"}), 1, 2, {.baselines = false}, absl::Seconds(30), change_mode_once));
  ASSERT_TRUE(changed_.load());
  ASSERT_EQ(report.warnings.size(), 1u) << "one table, once";
  EXPECT_THAT(report.warnings[0], HasSubstr("table 'embedding' is now in mode async"));
  EXPECT_THAT(report.warnings[0], HasSubstr("--resume latest --set train.mode=async"));
}

TEST_F(TrainingRunTest, ReplicatedFeaturesJoinAfterTheyWereSeen) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report,
                              Run(Job(Async({"embedding.placement=replicated", "wide.placement=sharded",
                                             "wide.replicated_features=[user]"})),
                                  1, 2, {.baselines = false}));
  ASSERT_EQ(report.tables.size(), 2u);
  EXPECT_EQ(report.tables[0].replication->rows, 80u);
  EXPECT_EQ(report.tables[1].replication->rows, 40u);
}

TEST_F(TrainingRunTest, CheckpointsHaveTheReplicatedRowsAndAResumedRunReplicatesThemAgain) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport first,
                              Run(Job(Async({"train.epochs=3"})), 2, 2, {.baselines = false}));
  ASSERT_GT(ReplicatedRows(first), 100u);
  // Nothing is left to train: the best epoch's checkpoint is loaded and tested.
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport again, Run(Job({"train.mode=async", "train.epochs=3"}), 3, 2,
                                                         {.resume = "auto", .baselines = false}));
  EXPECT_EQ(again.test.auc, first.test.auc);
  EXPECT_EQ(again.test.logloss, first.test.logloss);
  EXPECT_EQ(ReplicatedRows(again), ReplicatedRows(first));
  // A run without replicas has the same rows.
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport sync, Run(Job({"train.mode=sync", "train.epochs=3"}), 1, 2,
                                                        {.resume = "auto", .baselines = false}));
  EXPECT_EQ(sync.test.logloss, first.test.logloss);
}

TEST_F(TrainingRunTest, SaysWhatIsWrongBeforeItTrains) {
  EXPECT_THAT(Run(Job({"data.train=/no/such/file.csv"}), 1, 1).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/file.csv")));
  EXPECT_THAT(Run(Job(), 1, 1, {.resume = dir_.File("nothing")}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nothing")));
  EXPECT_THAT(Run(Job({"data.sparse=[user, shop]"}), 1, 1).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shop")));
  // A checkpoint of another model is refused.
  TANDEM_ASSERT_OK(Run(Job({"train.epochs=1"}), 1, 1, {.baselines = false}).status());
  EXPECT_THAT(Run(Job({"model.hidden=[4]"}), 1, 2, {.resume = "latest", .baselines = false}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shape [")));
}

}  // namespace
}  // namespace tandem::worker
