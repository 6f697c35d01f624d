// SPDX-License-Identifier: Apache-2.0
#include "worker/report/report.h"

#include <sstream>
#include <string>

#include "base/json.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::worker {
namespace {

using ::testing::HasSubstr;

tandem::v1::TableInfo Info(const std::string& name, uint64_t rows, uint64_t bytes,
                           std::vector<uint64_t> histogram, double mean) {
  tandem::v1::TableInfo info;
  info.mutable_config()->set_name(name);
  info.mutable_config()->set_dim(8);
  info.mutable_statistics()->set_rows(rows);
  info.mutable_statistics()->set_bytes(bytes);
  for (const uint64_t count : histogram) info.mutable_statistics()->add_staleness_histogram(count);
  info.mutable_statistics()->set_staleness_mean(mean);
  info.mutable_statistics()->set_staleness_max(histogram.size() - 1);
  return info;
}

RunReport MakeReport() {
  RunReport report;
  report.job = "clicks";
  report.model = "dlrm";
  report.mode = "async";
  report.workers = 2;
  report.servers = 2;
  report.best_epoch = report.tested_epoch = 1;
  report.test = {.auc = 0.75, .logloss = 0.5, .examples = 10};
  report.samples_per_s = 1234567;
  report.epochs.push_back(
      {.epoch = 1, .step = 4, .steps = 4, .examples = 40, .valid = {.auc = 0.7}, .best = true});
  report.epochs.back().times.forward = 0.008;
  report.baselines.push_back({"global mean", {.auc = 0.5, .logloss = 0.69}});
  report.tables.push_back(
      SummarizeTable("embedding", {{Info("embedding", 1000, 90000, {1, 0, 1}, 1.0)},
                                   {Info("other", 5, 5, {}, 0), Info("embedding", 500, 45000, {2}, 0.0)}}));
  return report;
}

TEST(ReportTest, ATableIsSummedOverItsShards) {
  const TableReport table = MakeReport().tables[0];
  EXPECT_EQ(table.rows, 1500u);
  EXPECT_EQ(table.bytes, 135000u);
  EXPECT_THAT(table.rows_per_shard, ::testing::ElementsAre(1000, 500));
  EXPECT_THAT(table.staleness_histogram, ::testing::ElementsAre(3, 0, 1));
  EXPECT_DOUBLE_EQ(table.staleness_mean, 0.5);
  EXPECT_EQ(table.staleness_max, 2u);
}

TEST(ReportTest, TheTableShowsWhatTheJsonHolds) {
  const RunReport report = MakeReport();
  const std::string text = FormatReport(report);
  EXPECT_THAT(text, HasSubstr("clicks: dlrm, async, 2 workers, 2 parameter servers"));
  EXPECT_THAT(text, HasSubstr("global mean"));
  EXPECT_THAT(text, HasSubstr("tandem dlrm (epoch 1)"));
  EXPECT_THAT(text, HasSubstr("0.7500"));
  EXPECT_THAT(text, HasSubstr("1,234,567 samples/s"));
  EXPECT_THAT(text, HasSubstr("1,500 rows, 90.0 bytes/row, per shard 1,000 + 500"));
  EXPECT_THAT(text, HasSubstr("0.50 updates on average, 2 at most"));

  const nlohmann::json json = ParseJson(ReportToJson(report));
  EXPECT_EQ(json["test"]["auc"], 0.75);
  EXPECT_EQ(json["epochs"][0]["valid"]["auc"], 0.7);
  EXPECT_DOUBLE_EQ(json["epochs"][0]["ms_per_step"]["forward"], 2.0);
  EXPECT_EQ(json["tables"][0]["rows_per_shard"], (std::vector<uint64_t>{1000, 500}));
  EXPECT_DOUBLE_EQ(json["tables"][0]["bytes_per_row"], 90.0);
  EXPECT_EQ(json["baselines"][0]["name"], "global mean");
}

TEST(ReportTest, AReportThatCannotBeWrittenNamesItsPath) {
  testing::TempDir dir;
  TANDEM_ASSERT_OK(WriteReport(MakeReport(), dir.File("r.json")));
  EXPECT_EQ(ParseJson(ReadFile(dir.File("r.json")).value())["job"], "clicks");
  EXPECT_THAT(WriteReport(MakeReport(), dir.File("no/such/folder.json")),
              testing::StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no/such/folder.json")));
}

}  // namespace
}  // namespace tandem::worker
