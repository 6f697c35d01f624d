// SPDX-License-Identifier: Apache-2.0
#include "worker/report/feature_report.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/report/report.h"

namespace tandem::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

LookupPlan ThreeFeatures() {
  LookupPlan plan;
  plan.num_features = 3;
  plan.tables = {{.name = "embedding",
                  .dim = 4,
                  .features = {0, 1, 2},
                  .placements = {ps::Placement::kAuto, ps::Placement::kSharded, ps::Placement::kAuto}}};
  plan.shared_features = {{0, 2}};
  return plan;
}

ps::RowStalenessCounts Counts(uint64_t rows, uint64_t staleness) {
  ps::RowStalenessCounts counts;
  for (uint64_t i = 0; i < rows; ++i) counts.Add(staleness);
  return counts;
}

TEST(FeatureReportTest, ReplicatedRowsCountAsFreshInProportion) {
  const LookupPlan plan = ThreeFeatures();
  // A tenth of the 1000 pulled rows was measured; three times as many were replicated.
  const ServedCounts served = {{{.ids = 9000, .replicated_ids = 8000, .replicated = 3000, .pulled = 1000},
                                {.ids = 500, .pulled = 500}}};
  const std::vector<FeatureReport> features =
      ReportFeatures(plan, {"item", "user", "history"}, {{Counts(100, 4), Counts(50, 6)}}, served);
  ASSERT_EQ(features.size(), 2u);
  EXPECT_EQ(features[0].feature, "item+history");
  EXPECT_EQ(features[0].row_staleness.rows, 400u);
  EXPECT_DOUBLE_EQ(features[0].row_staleness.Mean(), 1.0);
  EXPECT_DOUBLE_EQ(features[0].replicated_share(), 0.75);
  EXPECT_EQ(features[1].feature, "user");
  EXPECT_EQ(features[1].placement, ps::Placement::kSharded);
  EXPECT_DOUBLE_EQ(features[1].row_staleness.Mean(), 6.0);
}

TEST(FeatureReportTest, WhatWasNeverMeasuredIsNotStale) {
  const std::vector<FeatureReport> features =
      ReportFeatures(ThreeFeatures(), {"item", "user", "history"}, {}, NoneServed(ThreeFeatures()));
  ASSERT_EQ(features.size(), 2u);
  EXPECT_EQ(features[0].row_staleness.rows, 0u);
  EXPECT_THAT(RowStalenessWarning(features[0], false), IsEmpty());
}

TEST(FeatureReportTest, AWarningNamesTheFeatureAndWhatToChange) {
  FeatureReport feature{.table = "wide", .feature = "c3", .row_staleness = Counts(10, 7)};
  EXPECT_THAT(RowStalenessWarning(feature, false), HasSubstr("feature 'c3' (table 'wide')"));
  EXPECT_THAT(RowStalenessWarning(feature, false), HasSubstr("7.0 times"));
  EXPECT_THAT(RowStalenessWarning(feature, false), HasSubstr("train.max_in_flight"));
  EXPECT_THAT(RowStalenessWarning(feature, false), Not(HasSubstr("placement")));
  EXPECT_THAT(RowStalenessWarning(feature, true), HasSubstr("train.hot_rows.budget"));
  feature.placement = ps::Placement::kSharded;
  EXPECT_THAT(RowStalenessWarning(feature, true), HasSubstr("placement: auto"));
  feature.row_staleness = Counts(10, 1);
  EXPECT_THAT(RowStalenessWarning(feature, false), IsEmpty());
}

TEST(FeatureReportTest, TheReportShowsTheStalestFeatureWarningsAndWhatReplicationSaves) {
  RunReport report;
  report.features = {{.table = "wide", .feature = "c3", .row_staleness = Counts(10, 7)},
                     {.table = "wide", .feature = "c4", .row_staleness = Counts(10, 1)}};
  report.warnings = {"feature 'c3' loses quality"};
  report.tables = {{.name = "wide",
                    .dim = 1,
                    .replication = ReplicationReport{.rows = 870,
                                                     .bytes = 300'000,
                                                     .served = {.ids = 1000, .replicated_ids = 912},
                                                     .saved_pull_bytes = 2'000'000,
                                                     .saved_push_bytes = 1'000'000}}};
  const std::string text = FormatReport(report);
  EXPECT_THAT(text, HasSubstr("7.00 updates on average, p99 7: feature 'c3' of table 'wide'"));
  EXPECT_THAT(text, HasSubstr("warning: feature 'c3' loses quality"));
  EXPECT_THAT(text, HasSubstr("870 rows, 0.3 MB a worker, 91.2% of lookups; saved 2.0 MB of pulls, 1.0 MB"));
  const std::string json = ReportToJson(report);
  EXPECT_THAT(json, HasSubstr("\"row_staleness_mean\": 7.0"));
  EXPECT_THAT(json, HasSubstr("\"lookup_share\": 0.912"));
}

TEST(FeatureReportTest, TheReportShowsTheStartApartFromTheRest) {
  RunReport report{.mode = "async"};
  EXPECT_THAT(ReportToJson(report), Not(HasSubstr("\"start\"")));  // mode sync
  report.features = {{.table = "wide", .feature = "c3", .row_staleness = Counts(10, 1)}};
  report.start = StartReport{.synchronous = true, .steps = 20};
  EXPECT_THAT(FormatReport(report), HasSubstr("20 steps, then async"));
  EXPECT_THAT(ReportToJson(report),
              HasSubstr("\"start\": {\n    \"synchronous\": true,\n    \"steps\": 20\n  }"));
  report.start->synchronous = false;
  report.start->stalest = {.table = "wide", .feature = "c4", .row_staleness = Counts(10, 7)};
  EXPECT_THAT(FormatReport(report),
              HasSubstr("7.00 updates on average, p99 7, in 20 steps: feature 'c4' of table 'wide'"));
  EXPECT_THAT(FormatReport(report),
              HasSubstr("1.00 updates on average, p99 1: feature 'c3' of table 'wide'"));
  EXPECT_THAT(ReportToJson(report), HasSubstr("\"row_staleness_mean\": 7.0"));
}

}  // namespace
}  // namespace tandem::worker
