// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/scoring.h"

#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/random.h"
#include "base/read_file.h"
#include "cluster/store/memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/job/job_parser.h"
#include "worker/trainer/training_run.h"

namespace tandem::worker {
namespace {

using ::tandem::testing::PsCluster;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

class ScoringTest : public ::testing::Test {
 protected:
  ScoringTest() {
    std::ofstream out(dir_.File("clicks.csv"));
    out << "click,user,item,price\n";
    CounterRandom random(5, 5);
    for (int i = 0; i < 3000; ++i) {
      const uint64_t user = random.Below(40), item = random.Below(40);
      const double logit = (static_cast<double>(user % 5) - 2) + (static_cast<double>(item % 5) - 2);
      out << (random.UniformDouble() < 1 / (1 + std::exp(-logit)) ? 1 : 0) << ",u" << user << ",i" << item
          << "," << random.Below(100) << "\n";
    }
  }

  // Trains in this process and returns rank 0's report.
  absl::StatusOr<RunReport> Train(std::vector<std::string> overrides, int servers, int workers) {
    const std::string text = absl::StrCat(
        "name: clicks\ndata: {format: csv, train: ", dir_.File("clicks.csv"),
        ", label: click, sparse: [user, item], dense: [{column: price, transform: standardize}]}\n",
        "model: {kind: deepfm, dim: 4, hidden: [8], dropout: 0.1}\n",
        "train: {mode: sync, batch_size: 96, epochs: 2, timeout_seconds: 30}\n",
        "checkpoint: {dir: ", dir_.File("ckpt"), "}\n");
    TANDEM_ASSIGN_OR_RETURN(const JobSpec job, ParseJob(text, "test", overrides));
    PsCluster cluster(static_cast<uint32_t>(servers));
    cluster::MemoryStore store;
    std::vector<absl::StatusOr<RunReport>> reports(workers, absl::UnknownError("did not run"));
    const auto work = [&](int rank) -> absl::StatusOr<RunReport> {
      TANDEM_ASSIGN_OR_RETURN(auto client,
                              ps::Client::Connect(cluster.Channels(), {.worker = static_cast<uint32_t>(rank),
                                                                       .timeout = absl::Seconds(30)}));
      TANDEM_ASSIGN_OR_RETURN(
          auto group, collectives::InitProcessGroup(
                          &store, {.rank = rank, .world_size = workers, .timeout = absl::Seconds(30)}));
      return RunTraining(job, {.baselines = false, .predictions = dir_.File("predictions.tsv")},
                         {.client = client.get(), .group = group.get()});
    };
    std::vector<std::thread> threads;
    for (int rank = 0; rank < workers; ++rank) {
      threads.emplace_back([&, rank] { reports[rank] = work(rank); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& report : reports) TANDEM_RETURN_IF_ERROR(report);
    return reports[0];
  }

  testing::TempDir dir_;
};

TEST_F(ScoringTest, EqualsTheTrainersTestScoreBitForBit) {
  struct Case {
    int servers, workers;
    std::vector<std::string> overrides;
  };
  const Case cases[] = {
      {1, 1, {}},
      {2, 3, {}},
      {2, 2, {"model.kind=dlrm", "train.mode=async"}},
      {1, 2, {"model.batch_norm=local", "train.batch_size=600", "model.kind=dnn"}},
      {1, 2, {"model.kind=lr", "data.split.by=position"}},
      {2, 1, {"embedding.row_type=bf16", "embedding.wire.pull=int8", "model.kind=dcn"}},
      {1, 2, {"embedding.eviction={kind: lru, byte_budget: 65536}", "embedding.admission=count"}},
  };
  int number = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(number);
    std::vector<std::string> overrides = c.overrides;
    overrides.push_back(absl::StrCat("checkpoint.dir=", dir_.File(absl::StrCat("ckpt", number++))));
    TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report, Train(overrides, c.servers, c.workers));
    TANDEM_ASSERT_OK_AND_ASSIGN(const Scores scores, ScoreCheckpoint({.checkpoint = report.checkpoint}));
    TANDEM_ASSERT_OK_AND_ASSIGN(const ClickMetrics metrics, scores.examples.Evaluate());
    EXPECT_EQ(metrics.examples, report.test.examples);
    EXPECT_EQ(metrics.auc, report.test.auc);
    EXPECT_EQ(metrics.logloss, report.test.logloss);
    EXPECT_EQ(scores.split, Split::kTest);
    EXPECT_EQ(scores.model, report.model);
  }
}

TEST_F(ScoringTest, ScoresOtherDataWithoutTheTrainingData) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report, Train({}, 1, 1));
  const std::string moved = dir_.File("moved.csv");
  ASSERT_EQ(std::rename(dir_.File("clicks.csv").c_str(), moved.c_str()), 0);
  // The standardized column needs the mean over the training data, which the checkpoint has.
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const Scores test,
      ScoreCheckpoint({.checkpoint = report.checkpoint, .files = {moved}, .split = Split::kTest}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const ClickMetrics metrics, test.examples.Evaluate());
  EXPECT_EQ(metrics.auc, report.test.auc);
  EXPECT_EQ(metrics.logloss, report.test.logloss);

  TANDEM_ASSERT_OK_AND_ASSIGN(const Scores all,
                              ScoreCheckpoint({.checkpoint = report.checkpoint, .files = {moved}}));
  EXPECT_EQ(all.examples.size(), 3000u);
  EXPECT_FALSE(all.split.has_value());
  EXPECT_THAT(ScoreCheckpoint({.checkpoint = report.checkpoint}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("clicks.csv")));
}

TEST_F(ScoringTest, KeepsTheOrderOfTheFile) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report, Train({}, 1, 2));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Scores whole, ScoreCheckpoint({.checkpoint = report.checkpoint,
                                                                   .files = {dir_.File("clicks.csv")}}));
  const std::string text = *ReadFile(dir_.File("clicks.csv"));
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_EQ(whole.examples.size(), lines.size() - 1);
  for (size_t i = 1; i < lines.size(); ++i) {
    EXPECT_EQ(whole.examples.labels()[i - 1], lines[i][0] == '1' ? 1.0f : 0.0f);
  }
  // A file without labels gives the same scores.
  std::ofstream out(dir_.File("unlabelled.csv"));
  for (const std::string& line : lines) out << line.substr(line.find(',') + 1) << "\n";
  out.close();
  TANDEM_ASSERT_OK_AND_ASSIGN(const Scores unlabelled,
                              ScoreCheckpoint({.checkpoint = report.checkpoint,
                                               .files = {dir_.File("unlabelled.csv")},
                                               .label_is_optional = true}));
  EXPECT_FALSE(unlabelled.labelled);
  EXPECT_EQ(unlabelled.examples.logits(), whole.examples.logits());
  EXPECT_TRUE(std::isnan(unlabelled.examples.labels()[0]));
  EXPECT_THAT(
      ScoreCheckpoint({.checkpoint = report.checkpoint, .files = {dir_.File("unlabelled.csv")}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("label column 'click' is not in the data")));
}

TEST_F(ScoringTest, TakesTheBestEpochOfADirectory) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report, Train({"train.epochs=3"}, 1, 1));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Scores scores, ScoreCheckpoint({.checkpoint = dir_.File("ckpt")}));
  EXPECT_EQ(scores.checkpoint, report.checkpoint);
  EXPECT_EQ(scores.epoch, static_cast<uint64_t>(report.best_epoch));
}

TEST_F(ScoringTest, AJobThatNeedsMoreParametersThanTheCheckpointHasIsRefused) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report, Train({"model.kind=dnn"}, 1, 1));
  for (const std::string hidden : {"[1000, 1000]", "[20000, 30000]", "[65536, 65536, 65536]"}) {
    EXPECT_THAT(
        ScoreCheckpoint({.checkpoint = report.checkpoint, .set = {"model.hidden=" + hidden}}).status(),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dense parameters in the checkpoint")))
        << hidden;
  }
}

TEST_F(ScoringTest, SaysWhatDoesNotFit) {
  EXPECT_THAT(ScoreCheckpoint({.checkpoint = dir_.File("nothing")}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nothing")));
  EXPECT_THAT(ScoreCheckpoint({.checkpoint = dir_.path()}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("holds no checkpoint")));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RunReport report, Train({"train.epochs=1"}, 1, 1));
  EXPECT_THAT(ScoreCheckpoint({.checkpoint = report.checkpoint, .set = {"model.kind=dlrm"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("holds a model 'deepfm'")));
  EXPECT_THAT(ScoreCheckpoint({.checkpoint = report.checkpoint, .set = {"model.dim=8"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dim")));
  EXPECT_THAT(ScoreCheckpoint({.checkpoint = report.checkpoint, .set = {"data.dense=[]"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("data.dense lacks 'price'")));
}

}  // namespace
}  // namespace tandem::worker
