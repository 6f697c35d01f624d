// SPDX-License-Identifier: Apache-2.0
#include "worker/evaluation/logistic_baseline.h"

#include <cmath>

#include "base/random.h"
#include "tests/worker/data/test_files.h"
#include "worker/synthetic/planted.h"

namespace tandem::worker {
namespace {

using testing::StatusIs;

TEST(LogisticBaseline, ComesCloseToTheBestOfALinearModel) {
  const testing::TempDir dir;
  PlantedOptions options;
  options.rows = 100000;
  options.num_sparse = 5;
  options.max_vocabulary = 60;
  options.interacting = 0;
  options.num_dense = 0;
  const std::string path = dir.File("log.tsv");
  TANDEM_ASSERT_OK_AND_ASSIGN(const PlantedSummary best, WritePlanted(options, path));
  DatasetOptions data_options = {.schema = PlantedSchema(options, path), .train_files = {path}};
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto data, Dataset::Open(data_options));
  TANDEM_ASSERT_OK_AND_ASSIGN(const LogisticBaseline baseline, TrainLogisticBaseline(data.get(), {}));
  EXPECT_NEAR(baseline.test.auc, best.test.auc, 0.005);
  EXPECT_NEAR(baseline.test.logloss, best.test.logloss, 0.003);
  EXPECT_EQ(baseline.test.examples, best.test.examples);
  EXPECT_NEAR(baseline.mean_label, best.train.mean_label(), 1e-6);
  EXPECT_NEAR(baseline.mean_test_logloss,
              LogLossOfConstant(best.train.mean_label(), best.test.positives, best.test.examples), 1e-6);

  TANDEM_ASSERT_OK_AND_ASSIGN(const LogisticBaseline again, TrainLogisticBaseline(data.get(), {}));
  EXPECT_EQ(again.test.auc, baseline.test.auc) << "the same seed gives the same model";

  LogisticBaselineOptions capped;
  capped.max_rows = 5000;
  TANDEM_ASSERT_OK_AND_ASSIGN(const LogisticBaseline sample, TrainLogisticBaseline(data.get(), capped));
  EXPECT_LE(sample.train_rows, 5000);
  EXPECT_GT(sample.train_rows, 4000);
  EXPECT_EQ(sample.test.examples, best.test.examples) << "the test split is always whole";
  EXPECT_LT(sample.test.auc, baseline.test.auc);
}

TEST(LogisticBaseline, UsesDenseFeaturesOfAnyScale) {
  const testing::TempDir dir;
  std::string text = "label,n,c\n";
  CounterRandom random(1, 1);
  for (int i = 0; i < 20000; ++i) {
    const double x = random.Normal();
    const bool label = random.UniformDouble() < Sigmoid(2 * x);
    absl::StrAppend(&text, label ? 1 : 0, ",", 5e6 + 1e4 * x, ",", i % 7, "\n");
  }
  DatasetOptions options = {.schema = NumberedSchema(), .train_files = {WriteFile(dir, "a.csv", text)}};
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto data, Dataset::Open(options));
  TANDEM_ASSERT_OK_AND_ASSIGN(const LogisticBaseline baseline, TrainLogisticBaseline(data.get(), {}));
  EXPECT_GT(baseline.test.auc, 0.84);
}

TEST(LogisticBaseline, WeighsValuesAndTakesBags) {
  const testing::TempDir dir;
  std::string text;
  CounterRandom random(2, 1);
  for (int i = 0; i < 20000; ++i) {
    const double x = std::round(random.Normal() * 100) / 100;
    const bool label = random.UniformDouble() < Sigmoid(2 * x);
    absl::StrAppend(&text, label ? "+1" : "-1", " 1:", x, i % 2 == 0 ? " 2:1" : "", "\n");
  }
  DatasetOptions options = {.schema = {.format = DataFormat::kLibsvm},
                            .train_files = {WriteFile(dir, "a", text)}};
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto data, Dataset::Open(options));
  TANDEM_ASSERT_OK_AND_ASSIGN(const LogisticBaseline baseline, TrainLogisticBaseline(data.get(), {}));
  EXPECT_GT(baseline.test.auc, 0.84);
}

TEST(LogisticBaseline, SaysWhenThereIsNothingToLearn) {
  const testing::TempDir dir;
  DatasetOptions options = {.schema = NumberedSchema(),
                            .train_files = {WriteFile(dir, "a.csv", NumberedCsv(0))}};
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto empty, Dataset::Open(options));
  EXPECT_THAT(TrainLogisticBaseline(empty.get(), {}), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace tandem::worker
