// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/trainer/training_job.h"
#include "worker/report/feature_report.h"
#include "worker/trainer/training_run.h"

namespace tandem::worker {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr uint64_t kFirstSteps = 20;
constexpr double kAlike = 1e-4;  // of two losses

// Clicks that depend on the product of hidden factors of user and item alone. A factorization machine whose
// rows begin near zero must leave a saddle there, so stale first updates cost it much.
void WriteProductClicks(const std::string& path, int rows) {
  constexpr uint64_t kUsers = 60, kItems = 80, kRank = 3;
  std::ofstream out(path);
  out << "click,user,item\n";
  CounterRandom random(7, 1);
  std::vector<double> factors((kUsers + kItems) * kRank);
  for (double& factor : factors) factor = 2.4 * random.UniformDouble() - 1.2;
  for (int i = 0; i < rows; ++i) {
    const uint64_t user = random.Below(kUsers), item = random.Below(kItems);
    double logit = 0;
    for (uint64_t k = 0; k < kRank; ++k) {
      logit += 3 * factors[user * kRank + k] * factors[(kUsers + item) * kRank + k];
    }
    out << (random.UniformDouble() < 1 / (1 + std::exp(-logit)) ? 1 : 0) << ",u" << user << ",i" << item
        << "\n";
  }
}

class SynchronousStartTest : public TrainingJob {
 protected:
  SynchronousStartTest() { WriteProductClicks(dir_.File("product.csv"), 20000); }

  JobSpec Fm(const std::string& mode, const std::string& optimizer) {
    const std::string text =
        absl::StrCat("name: product\ndata: {format: csv, train: ", dir_.File("product.csv"),
                     ", label: click, sparse: [user, item]}\nmodel: {kind: fm, dim: 4}\n",
                     "embedding: {optimizer: ", optimizer, ", initializer: {kind: normal, stddev: 0.01}}\n",
                     "wide: {optimizer: ", optimizer, "}\n", "train: {mode: ", mode,
                     ", batch_size: 256, epochs: 12, timeout_seconds: 60}\n",
                     "checkpoint: {dir: ", dir_.File(absl::StrCat("ckpt", ++runs_)), "}\n");
    absl::StatusOr<JobSpec> job = ParseJob(text, "test", {});
    TANDEM_CHECK_MSG(job.ok(), job.status().ToString());
    return *std::move(job);
  }

  int runs_ = 0;
};

TEST_F(SynchronousStartTest, AFactorizationMachineLosesNothingByAnyAsynchronousMode) {
  for (const std::string optimizer : {"{kind: adam, lr: 0.02}", "{kind: adagrad, lr: 0.1}",
                                      "{kind: ftrl, lr: 0.1, initial_accumulator: 1e-7}"}) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport sync, Run(Fm("sync", optimizer), 2, 2, {.baselines = false}));
    EXPECT_GT(sync.test.auc, 0.75) << optimizer;
    EXPECT_FALSE(sync.start.has_value());
    for (const std::string mode : {"async", "{bounded: 4}", "gba"}) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report,
                                  Run(Fm(mode, optimizer), 2, 2, {.baselines = false}));
      EXPECT_NEAR(report.test.auc, sync.test.auc, 0.002) << mode << " " << optimizer;
      ASSERT_EQ(report.epochs.size(), sync.epochs.size());
      // Nearly all rows are replicated after the start. Gradients of those that come later may be late once.
      EXPECT_NEAR(report.epochs.back().train_loss, sync.epochs.back().train_loss, kAlike)
          << mode << " " << optimizer;
      ASSERT_TRUE(report.start.has_value());
      EXPECT_TRUE(report.start->synchronous);
      EXPECT_EQ(report.start->steps, kFirstSteps);
      for (const TableReport& table : report.tables) EXPECT_EQ(table.mode, report.mode);
    }
  }
}

TEST_F(SynchronousStartTest, OneWorkerStartsSynchronouslyToo) {
  const std::string adam = "{kind: adam, lr: 0.02}";
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport sync, Run(Fm("sync", adam), 1, 1, {.baselines = false}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report, Run(Fm("async", adam), 1, 1, {.baselines = false}));
  EXPECT_NEAR(report.epochs.back().train_loss, sync.epochs.back().train_loss, kAlike);
  EXPECT_EQ(report.start->steps, kFirstSteps);
}

TEST_F(SynchronousStartTest, ARunThatEndsInItsStartIsTheSynchronousOneAndLeavesTheTablesInTheirMode) {
  const std::vector<std::string> short_run = {"train.epochs=1", "train.hot_rows.first_steps=1000"};
  std::vector<std::string> async = short_run;
  async.insert(async.end(), {"train.mode=async", absl::StrCat("checkpoint.dir=", dir_.File("other"))});
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport sync, Run(Job(short_run), 2, 2, {.baselines = false}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report, Run(Job(async), 2, 2, {.baselines = false}));
  EXPECT_EQ(report.test.logloss, sync.test.logloss);
  EXPECT_EQ(report.start->steps, report.epochs.back().steps);
  for (const TableReport& table : report.tables) EXPECT_EQ(table.mode, "async");
}

TEST_F(SynchronousStartTest, AResumedRunStartsSynchronouslyAgainWithTheReplicasOfItsCheckpoint) {
  const std::vector<std::string> async = {"train.mode=async", "train.hot_rows.first_steps=7"};
  std::vector<std::string> first = async, second = async;
  first.push_back("train.epochs=1");
  second.push_back("train.epochs=2");
  TANDEM_ASSERT_OK(Run(Job(first), 2, 2, {.baselines = false}).status());
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report,
                              Run(Job(second), 2, 2, {.resume = "latest", .baselines = false}));
  ASSERT_TRUE(report.start.has_value());
  EXPECT_TRUE(report.start->synchronous);
  EXPECT_EQ(report.start->steps, 7u);
  for (const TableReport& table : report.tables) {
    // From the checkpoint: they did not have to join again.
    EXPECT_GT(table.replication->rows, 40u);
    EXPECT_LT(table.replication->joined, 40u);
  }
}

TEST_F(SynchronousStartTest, AJobThatCanReplicateNothingStartsSoTooAndWarnsOnceItsFirstStepsAreMeasured) {
  const std::vector<std::vector<std::string>> jobs = {
      {"embedding.placement=sharded", "wide.placement=sharded"},
      {"embedding.optimizer.clip_global_norm=1", "wide.optimizer.clip_global_norm=1"},
      {"embedding.cache.bytes=64KiB", "wide.cache.bytes=64KiB"}};
  for (std::vector<std::string> job : jobs) {
    const bool cached = job[0].find("cache") != std::string::npos;
    job.insert(job.end(), {"train.mode=async", "train.epochs=1", "train.hot_rows.first_steps=10"});
    TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report,
                                Run(Job(job), 2, 2, {.overwrite = true, .baselines = false}));
    ASSERT_TRUE(report.start.has_value()) << job[0];
    // Mode sync allows no cache, so that only the others wait.
    EXPECT_EQ(report.start->synchronous, !cached) << job[0];
    EXPECT_EQ(report.start->steps, 10u) << job[0];
    if (cached) {
      EXPECT_GT(report.start->stalest.row_staleness.Mean(), kHighRowStaleness) << job[0];
    }
    EXPECT_THAT(report.warnings, Contains(HasSubstr("feature 'user' (table 'embedding') loses quality")))
        << job[0];
    for (const TableReport& table : report.tables) EXPECT_EQ(table.mode, "async") << job[0];
  }
}

TEST_F(SynchronousStartTest, AJobWhoseServersPoolStartsSynchronously) {
  const std::vector<std::string> pooled = {"embedding.pooling=server", "train.mode=async", "train.epochs=2"};
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report, Run(Job(pooled), 2, 2, {.baselines = false}));
  EXPECT_TRUE(report.start->synchronous);
  EXPECT_EQ(report.start->steps, kFirstSteps);
  EXPECT_GT(report.test.auc, 0.7);
}

}  // namespace
}  // namespace tandem::worker
