// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/metric_families.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/latency_bins.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::cli {
namespace {

using ::prometheus::ClientMetric;
using ::prometheus::MetricFamily;
using ::prometheus::MetricType;
using ::testing::ElementsAre;

class FamiliesTest : public ::testing::Test {
 protected:
  v1::TableStatistics* AddTable(const std::string& name, v1::UpdateMode::Kind kind) {
    v1::TableInfo& table = figures_.tables.emplace_back();
    table.mutable_config()->set_name(name);
    table.mutable_config()->mutable_update_mode()->set_kind(kind);
    return table.mutable_statistics();
  }
  // Returns the family of that name, or an empty one.
  MetricFamily Find(const std::string& name) {
    for (MetricFamily& family : MakeMetricFamilies(figures_)) {
      if (family.name == name) return family;
    }
    ADD_FAILURE() << "no family " << name;
    return {};
  }
  // Returns the values of a gauge or counter by the value of its last label.
  std::map<std::string, double> Values(const std::string& name) {
    std::map<std::string, double> values;
    const MetricFamily family = Find(name);
    for (const ClientMetric& metric : family.metric) {
      values[metric.label.empty() ? "" : metric.label.back().value] =
          family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value;
    }
    return values;
  }

  ServerMetrics figures_;
};

using Value = std::pair<const std::string, double>;

TEST_F(FamiliesTest, EachFigureIsToldOncePerTableUnderItsName) {
  v1::TableStatistics* user = AddTable("user", v1::UpdateMode::SYNC);
  user->set_rows(7);
  user->set_pushed_rows(11);
  user->set_longest_pause_us(2500);
  AddTable("item", v1::UpdateMode::ASYNC)->set_rows(8);
  EXPECT_THAT(Values("tandem_table_rows"), ElementsAre(Value("item", 8), Value("user", 7)));
  EXPECT_THAT(Values("tandem_table_pushed_rows_total"), ElementsAre(Value("item", 0), Value("user", 11)));
  EXPECT_DOUBLE_EQ(Values("tandem_table_longest_pause_seconds")["user"], 0.0025);
}

TEST_F(FamiliesTest, ALogIsToldOnlyIfThereIsOne) {
  for (const MetricFamily& family : MakeMetricFamilies(figures_))
    EXPECT_NE(family.name, "tandem_log_records_total");
  figures_.durability.set_enabled(true);
  figures_.durability.set_log_position(12);
  figures_.durability.set_longest_snapshot_pause_s(0.25);
  EXPECT_EQ(Values("tandem_log_records_total")[""], 12);
  EXPECT_DOUBLE_EQ(Values("tandem_snapshot_longest_pause_seconds")[""], 0.25);
}

TEST_F(FamiliesTest, CopiesAreToldOnlyIfThereAreAny) {
  for (const MetricFamily& family : MakeMetricFamilies(figures_))
    EXPECT_FALSE(absl::StartsWith(family.name, "tandem_failover") ||
                 absl::StartsWith(family.name, "tandem_follower"))
        << family.name;
  v1::ReplicaStatus& status = figures_.failover;
  status.set_role(v1::REPLICA_ROLE_PRIMARY);
  status.set_serving(true);
  status.set_log_position(100);
  status.mutable_placement()->set_term(3);
  status.mutable_placement()->set_failovers(2);
  status.mutable_placement()->add_in_sync();
  v1::ReplicaStatus::Link* follower = status.add_links();
  follower->set_in_sync(true);
  follower->set_applied_position(90);
  follower->set_silent_ms(20);
  v1::ReplicaStatus::Link* learner = status.add_links();
  learner->set_unsent_bytes(5);
  EXPECT_EQ(Values("tandem_failover_primary")[""], 1);
  EXPECT_EQ(Values("tandem_failover_term")[""], 3);
  EXPECT_EQ(Values("tandem_failover_takeovers_total")[""], 2);
  EXPECT_EQ(Values("tandem_failover_in_sync")[""], 1);
  EXPECT_EQ(Values("tandem_failover_learners")[""], 1);
  EXPECT_EQ(Values("tandem_failover_lag_records")[""], 10);
  EXPECT_EQ(Values("tandem_failover_unsent_bytes")[""], 5);
  EXPECT_DOUBLE_EQ(Values("tandem_failover_silent_seconds")[""], 0.02);
  status.set_role(v1::REPLICA_ROLE_FOLLOWER);
  status.set_primary_position(103);
  status.set_applied_position(100);
  EXPECT_EQ(Values("tandem_failover_primary")[""], 0);
  EXPECT_EQ(Values("tandem_failover_lag_records")[""], 3);
  status.set_follower_reads(7);
  status.set_refused_follower_reads(2);
  status.set_read_lag_us(1500);
  EXPECT_EQ(Values("tandem_follower_reads_total")[""], 7);
  EXPECT_EQ(Values("tandem_follower_reads_refused_total")[""], 2);
  EXPECT_DOUBLE_EQ(Values("tandem_follower_read_lag_seconds")[""], 0.0015);
}

TEST_F(FamiliesTest, TheServerIsToldWithoutTables) {
  figures_.server.set_index(2);
  figures_.server.set_num_servers(3);
  figures_.server.set_open_sockets(12);
  EXPECT_THAT(Values("tandem_server_info"), ElementsAre(Value("3", 1)));
  EXPECT_EQ(Find("tandem_server_info").metric[0].label[0].value, "2");
  EXPECT_THAT(Values("tandem_server_open_sockets"), ElementsAre(Value("", 12)));
  EXPECT_TRUE(Find("tandem_table_rows").metric.empty());
}

TEST_F(FamiliesTest, LatenciesAreCumulatedByOctavesOfSeconds) {
  v1::LatencyHistogram* latency = AddTable("user", v1::UpdateMode::SYNC)->mutable_pull_latency();
  latency->mutable_counts()->Resize(kLatencyBins, 0);
  const auto count = [latency](uint64_t ns) {
    const int bin = static_cast<int>(LatencyBin(ns));
    latency->set_counts(bin, latency->counts(bin) + 1);
  };
  const std::vector<uint64_t> durations_ns = {500, 1500, 1700, 5000, 1'000'000, 1'000'000'000'000'000};
  for (const uint64_t ns : durations_ns) count(ns);
  latency->set_sum_us(3e6);
  const MetricFamily family = Find("tandem_pull_latency_seconds");
  ASSERT_EQ(family.metric.size(), 1u);
  const auto& histogram = family.metric[0].histogram;
  EXPECT_EQ(histogram.sample_count, durations_ns.size());
  EXPECT_DOUBLE_EQ(histogram.sample_sum, 3);
  EXPECT_EQ(histogram.bucket.back().upper_bound, std::numeric_limits<double>::infinity());
  double last_bound = 0;
  for (const auto& bucket : histogram.bucket) {
    EXPECT_GT(bucket.upper_bound, last_bound);
    last_bound = bucket.upper_bound;
    uint64_t below = 0;
    for (const uint64_t ns : durations_ns) below += static_cast<double>(ns) * 1e-9 < bucket.upper_bound;
    EXPECT_EQ(bucket.cumulative_count, below) << bucket.upper_bound;
  }
}

TEST_F(FamiliesTest, StalenessIsAHistogramOfUpdates) {
  v1::TableStatistics* user = AddTable("user", v1::UpdateMode::ASYNC);
  for (const int pushes : {4, 0, 2, 1}) user->add_staleness_histogram(pushes);
  user->set_staleness_mean(2);
  const MetricFamily family = Find("tandem_table_staleness");
  ASSERT_EQ(family.metric.size(), 1u);
  const auto& histogram = family.metric[0].histogram;
  ASSERT_EQ(histogram.bucket.size(), 4u);
  std::vector<uint64_t> cumulated;
  for (const auto& bucket : histogram.bucket) cumulated.push_back(bucket.cumulative_count);
  EXPECT_THAT(cumulated, ElementsAre(4, 4, 6, 7));
  EXPECT_EQ(histogram.bucket[2].upper_bound, 2);
  EXPECT_EQ(histogram.bucket[3].upper_bound, std::numeric_limits<double>::infinity());
  EXPECT_EQ(histogram.sample_count, 7u);
  EXPECT_DOUBLE_EQ(histogram.sample_sum, 14);
}

TEST_F(FamiliesTest, RowStalenessIsAHistogramOfUpdatesOfTheRow) {
  v1::TableStatistics* user = AddTable("user", v1::UpdateMode::ASYNC);
  v1::RowStaleness* const counts = user->mutable_row_staleness();
  counts->set_rows(10);
  counts->set_sum(17);
  for (const int rows : {4, 0, 2, 1, 3}) counts->add_histogram(rows);
  const MetricFamily family = Find("tandem_table_row_staleness");
  ASSERT_EQ(family.metric.size(), 1u);
  const auto& histogram = family.metric[0].histogram;
  ASSERT_GT(histogram.bucket.size(), 6u);
  EXPECT_EQ(histogram.bucket[2].upper_bound, 2);
  EXPECT_EQ(histogram.bucket[2].cumulative_count, 6u);
  EXPECT_EQ(histogram.bucket[4].upper_bound, 5);  // the bin of 4 and 5
  EXPECT_EQ(histogram.bucket[4].cumulative_count, 10u);
  EXPECT_EQ(histogram.sample_count, 10u);
  EXPECT_DOUBLE_EQ(histogram.sample_sum, 17);
}

TEST_F(FamiliesTest, TheModeIsTheOneSeriesOfFourThatIsOne) {
  AddTable("user", v1::UpdateMode::BOUNDED);
  figures_.tables[0].mutable_config()->mutable_update_mode()->set_staleness(3);
  EXPECT_THAT(Values("tandem_table_mode"),
              ElementsAre(Value("async", 0), Value("bounded", 1), Value("gba", 0), Value("sync", 0)));
  EXPECT_EQ(Values("tandem_table_staleness_allowed")["user"], 3);
  figures_.tables[0].mutable_config()->mutable_update_mode()->set_kind(v1::UpdateMode::ASYNC);
  EXPECT_TRUE(std::isinf(Values("tandem_table_staleness_allowed")["user"]));
  figures_.tables[0].mutable_config()->mutable_update_mode()->set_kind(v1::UpdateMode::SYNC);
  EXPECT_EQ(Values("tandem_table_staleness_allowed")["user"], 0);
}

}  // namespace
}  // namespace tandem::cli
