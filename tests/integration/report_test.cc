// SPDX-License-Identifier: Apache-2.0
// Tests that the report of a run is correct, complete and useful.

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/job_dir.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::integration {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::Lines;
using ::testing::Not;
using testing::ReadFile;

struct Prediction {
  bool positive;
  double probability;
};

std::vector<Prediction> ReadPredictions(const std::string& path) {
  std::vector<Prediction> predictions;
  for (const std::string& line : Lines(ReadFile(path))) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    double probability = -1;
    EXPECT_EQ(fields.size(), 2u) << line;
    EXPECT_TRUE(absl::SimpleAtod(fields.back(), &probability)) << line;
    predictions.push_back({fields[0] == "1", probability});
  }
  return predictions;
}

// The AUC, counted pair by pair.
double PairwiseAuc(const std::vector<Prediction>& predictions) {
  double right = 0, pairs = 0;
  for (const Prediction& p : predictions) {
    for (const Prediction& n : predictions) {
      if (!p.positive || n.positive) continue;
      pairs += 1;
      right += p.probability > n.probability ? 1 : p.probability == n.probability ? 0.5 : 0;
    }
  }
  return right / pairs;
}

double Logloss(const std::vector<Prediction>& predictions) {
  double sum = 0;
  for (const Prediction& p : predictions) sum -= std::log(p.positive ? p.probability : 1 - p.probability);
  return sum / static_cast<double>(predictions.size());
}

TEST(ReportTest, ItsQualityIsThatOfThePredictionsByOthersComputations) {
  const JobDir job;
  const Json report = job.TrainAndReport(2, 2, {"--predictions", "predictions.tsv"});
  const std::vector<Prediction> predictions = ReadPredictions(job.File("predictions.tsv"));
  ASSERT_GT(predictions.size(), 200u);
  EXPECT_EQ(report.at("test").at("examples"), predictions.size());
  EXPECT_NEAR(report.at("test").at("auc"), PairwiseAuc(predictions), 1e-9);
  EXPECT_NEAR(report.at("test").at("logloss"), Logloss(predictions), 1e-6);

  const std::string command = absl::StrCat("python3 " TANDEM_SOURCE_DIR "/scripts/reference_lr.py metrics ",
                                           job.File("predictions.tsv"));
  std::FILE* pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), pipe));
  ASSERT_EQ(::pclose(pipe), 0);
  const Json reference = ParseJson(text);
  EXPECT_EQ(reference.at("rows"), predictions.size());
  EXPECT_NEAR(report.at("test").at("auc"), reference.at("auc"), 1e-3);
  EXPECT_NEAR(report.at("test").at("logloss"), reference.at("logloss"), 1e-3);
}

TEST(ReportTest, ItHasEveryFigureOfTheRunAndOfEachEpoch) {
  const JobDir job;
  const Finished finished = job.Train(2, 2, {"--report", "r.json"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const Json report = ParseJson(ReadFile(job.File("r.json")));
  EXPECT_EQ(report.at("job"), "tiny");
  EXPECT_EQ(report.at("model"), "deepfm");
  EXPECT_EQ(report.at("mode"), "sync");
  EXPECT_EQ(report.at("workers"), 2);
  EXPECT_EQ(report.at("servers"), 2);
  EXPECT_EQ(report.at("seed"), 1);
  EXPECT_EQ(report.at("malformed_lines"), 0);
  EXPECT_GT(report.at("samples_per_s"), 0);
  EXPECT_GT(report.at("seconds"), 0);
  ASSERT_GE(report.at("baselines").size(), 2u);
  EXPECT_EQ(report.at("baselines")[0].at("auc"), 0.5);
  EXPECT_GT(report.at("baselines")[1].at("auc"), 0.6);

  const uint64_t examples = report.at("train_examples");
  const uint64_t steps = (examples / 2 + 1 + 127) / 128;  // steps of 128 examples on each of two workers
  ASSERT_EQ(report.at("epochs").size(), 2u);
  for (int i = 0; i < 2; ++i) {
    const Json& epoch = report.at("epochs")[i];
    EXPECT_EQ(epoch.at("epoch"), i + 1);
    EXPECT_NEAR(epoch.at("steps"), steps, 1);
    EXPECT_EQ(epoch.at("step"), (i + 1) * epoch.at("steps").get<int>());
    EXPECT_NEAR(epoch.at("examples"), examples, 1);  // padding may repeat one example
    EXPECT_NEAR(epoch.at("samples_per_s").get<double>() * epoch.at("seconds").get<double>(), examples, 2);
    EXPECT_EQ(epoch.at("learning_rate"), 0.005);
    EXPECT_EQ(epoch.at("staleness_mean"), 0.0);
    EXPECT_GT(epoch.at("valid").at("auc"), 0.5);
    EXPECT_GT(epoch.at("train_loss"), 0.0);
    double ms = 0;
    for (const Json& stage : epoch.at("ms_per_step")) ms += stage.get<double>();
    EXPECT_GT(ms, 0.0);
  }
  ASSERT_EQ(report.at("tables").size(), 2u);
  for (const Json& table : report.at("tables")) {
    const std::vector<uint64_t> shards = table.at("rows_per_shard");
    ASSERT_EQ(shards.size(), 2u);
    EXPECT_EQ(shards[0] + shards[1], table.at("rows"));
    EXPECT_NEAR(table.at("bytes_per_row").get<double>() * table.at("rows").get<double>(), table.at("bytes"),
                1);
    // A row has at least its weights and Adagrad's sums.
    EXPECT_GE(table.at("bytes_per_row"), table.at("dim").get<double>() * 8);
    EXPECT_EQ(table.at("staleness_max"), 0);
    EXPECT_EQ(table.at("missing_rows"), 0);
    EXPECT_EQ(table.at("refused_pushes"), 0);
  }
  for (const char* text : {"AUC", "logloss", "samples/s", "bytes/row", "per shard", "measured staleness",
                           "checkpoint", "global mean", "logistic regression"}) {
    EXPECT_THAT(finished.out, HasSubstr(text));
  }
}

TEST(ReportTest, TheCommandsItProposesGoOnWithTheSameJob) {
  const JobDir job;
  const Finished finished =
      job.Train(2, 2, {"--model", "fm", "--set", "checkpoint.dir=over here", "--set", "train.batch_size=64"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  std::string train, ls;
  for (const std::string& line : Lines(finished.out)) {
    if (absl::StrContains(line, "--resume latest")) train = line;
    if (absl::StrContains(line, "ckpt ls")) ls = line;
  }
  auto shell = [&](std::string line) {
    line = line.substr(line.find("] ") + 2);
    return std::system(absl::StrCat("cd ", job.File("."), " && ", line, " > shell.txt 2>&1").c_str());
  };
  EXPECT_EQ(shell(train), 0) << train << ReadFile(job.File("shell.txt"));
  EXPECT_THAT(ReadFile(job.File("shell.txt")), AllOf(HasSubstr("epoch 4/4"), HasSubstr("tandem fm")));
  EXPECT_EQ(shell(ls), 0) << ls;
  const std::string list = ReadFile(job.File("shell.txt"));
  EXPECT_EQ(Lines(list).size(), 5u) << list;  // a header and four epochs
  EXPECT_THAT(list, AllOf(HasSubstr("valid_auc="), HasSubstr("valid_logloss="), HasSubstr("train_loss="),
                          Not(HasSubstr("schedule")), Not(HasSubstr("since_best"))));
}

TEST(ReportTest, TheBenchmarkPrintsOneObject) {
  const JobDir job;
  const Finished finished =
      job.Run({"bench", "train",    "--json", "--workers", "2", "--servers",   "2",  "--batch",
               "32",    "--rows",   "200",    "--sparse",  "4", "--dense",     "3",  "--steps",
               "5",     "--warmup", "2",      "--repeats", "2", "--optimizer", "sgd"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  ASSERT_EQ(Lines(finished.out).size(), 1u) << finished.out;
  const Json result = ParseJson(finished.out);
  ASSERT_TRUE(result.is_object());
  EXPECT_EQ(result.at("optimizer"), "sgd");
  EXPECT_EQ(result.at("workers"), 2);
  EXPECT_EQ(result.at("servers"), 2);
  EXPECT_EQ(result.at("batch"), 32);
  EXPECT_GT(result.at("samples_per_s"), 0);
  ASSERT_GE(result.at("ms").size(), 5u);
  for (const Json& stage : result.at("ms")) EXPECT_GE(stage, 0.0);
  EXPECT_TRUE(job.NoLeaks());
}

}  // namespace
}  // namespace tandem::integration
