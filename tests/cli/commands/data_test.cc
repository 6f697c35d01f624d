// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/synthetic/planted.h"

namespace tandem::cli {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using testing::Lines;
using testing::ReadFile;
using testing::RunTandem;

TEST(DataTest, PlantedLogsAreWrittenWithTheirBestPossibleMetrics) {
  testing::TempDir dir;
  const std::string path = dir.File("planted.tsv");
  const Finished finished = RunTandem({"data", "planted", "--rows", "2000", "--out", path});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("best possible AUC"));
  EXPECT_EQ(Lines(ReadFile(path)).size(), 2001u);  // and a header
  TANDEM_ASSERT_OK_AND_ASSIGN(const worker::PlantedSummary summary, worker::ReadPlantedSummary(path));
  EXPECT_EQ(summary.rows, 2000u);
}

TEST(DataTest, TheFirstExampleShowsWhatInteractionsAreWorth) {
  testing::TempDir dir;
  const std::string path = dir.File("clicks.csv");
  const Finished made = RunTandem({"data", "planted", "--rows", "100000", "--sparse", "8", "--dense", "0",
                                   "--interaction-stddev", "1.2", "--out", path});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Finished trained =
      RunTandem({"train", absl::StrCat(TANDEM_JOBS_DIR, "/clicks.yaml"), "--set", "data.train=" + path,
                 "--set", "checkpoint.dir=ckpt", "--report", "report.json"},
                {}, dir.path());
  ASSERT_EQ(trained.exit_code, 0) << trained.out << trained.err;
  const nlohmann::json report = ParseJson(ReadFile(dir.File("report.json")));
  std::map<std::string, double> auc = {{"deepfm", report.at("test").at("auc").get<double>()}};
  for (const auto& baseline : report.at("baselines"))
    auc[baseline.at("name").get<std::string>()] = baseline.at("auc").get<double>();
  EXPECT_GT(auc["deepfm"], auc["logistic regression (one process)"] + 0.05);
  EXPECT_LT(auc["deepfm"], auc["best possible (the planted model)"] + 0.005);
}

TEST(DataTest, OptionsThatMakeNoSenseAreNamed) {
  testing::TempDir dir;
  Finished finished =
      RunTandem({"data", "planted", "--rows", "10", "--sparse", "-1", "--out", dir.File("x.tsv")});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.err, HasSubstr("--sparse: -1 is not a number in [1, 1024]"));
  finished = RunTandem({"data", "planted", "--rows", "10", "--out", dir.File("no/such/x.tsv")});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("no/such"));
}

// Writes 200 copies of 20 lines, and a job that trains on them. Returns the job's path.
std::string WriteRepeatedLines(const testing::TempDir& dir) {
  std::ofstream data(dir.File("data.csv"));
  data << "click,c\n";
  for (int i = 0; i < 4000; ++i) data << i % 2 << ",v" << i % 20 << "\n";
  std::ofstream(dir.File("job.yaml")) << "data: {train: data.csv, label: click, sparse: [c]}\nmodel: lr\n"
                                         "train: {epochs: 1}\ncheckpoint: {dir: ckpt}\n";
  return dir.File("job.yaml");
}

TEST(DataTest, TrainWarnsOfManyRepeatedLinesUnlessPositionsDivideThem) {
  testing::TempDir dir;
  const std::string job = WriteRepeatedLines(dir);
  const Finished by_text = RunTandem({"train", job, "--no-baselines"}, {}, dir.path());
  EXPECT_THAT(by_text.err + by_text.out, HasSubstr("of the lines repeat the text of another line"));
  EXPECT_THAT(by_text.err + by_text.out, HasSubstr("data.split.by: position"));
  const Finished by_position = RunTandem({"train", job, "--no-baselines", "--set", "data.split.by=position",
                                          "--set", "checkpoint.dir=" + dir.File("other")},
                                         {}, dir.path());
  EXPECT_EQ(by_position.exit_code, 0) << by_position.err;
  EXPECT_THAT(by_position.err + by_position.out, ::testing::Not(HasSubstr("repeat")));
}

TEST(DataTest, TrainRefusesAFifoByNameInsteadOfWaiting) {
  testing::TempDir dir;
  const std::string job = WriteRepeatedLines(dir), fifo = dir.File("fifo.csv");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const Finished finished = RunTandem({"train", job, "--set", "data.train=" + fifo}, {}, dir.path());
  EXPECT_NE(finished.exit_code, 0);
  EXPECT_THAT(finished.err + finished.out, HasSubstr("fifo.csv' is not a regular file but a FIFO"));
}

}  // namespace
}  // namespace tandem::cli
