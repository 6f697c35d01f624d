// SPDX-License-Identifier: Apache-2.0
#include "ps/client/statistics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "base/latency_bins.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/row_staleness.h"

namespace tandem::ps {
namespace {

using ::testing::ElementsAre;

v1::TableInfo Info(const std::string& name, uint64_t rows) {
  v1::TableInfo info;
  info.mutable_config()->set_name(name);
  info.mutable_statistics()->set_rows(rows);
  info.mutable_statistics()->set_bytes(rows * 10);
  return info;
}
v1::LatencyHistogram Latency(std::initializer_list<uint64_t> counts) {
  v1::LatencyHistogram histogram;
  for (const uint64_t count : counts) {
    histogram.add_counts(count);
    histogram.set_sum_us(histogram.sum_us() + 10.0 * static_cast<double>(count));
  }
  return histogram;
}

TEST(SumTables, AddsWhatServersSay) {
  v1::TableInfo here = Info("user", 10), there = Info("user", 30);
  *here.mutable_statistics()->mutable_pull_latency() = Latency({1, 2});
  *there.mutable_statistics()->mutable_pull_latency() = Latency({0, 1, 4});
  for (const uint64_t count : {3, 1}) here.mutable_statistics()->add_staleness_histogram(count);
  for (const uint64_t count : {0, 0, 4}) there.mutable_statistics()->add_staleness_histogram(count);
  here.mutable_statistics()->set_staleness_mean(0.25);
  there.mutable_statistics()->set_staleness_mean(2);
  here.mutable_statistics()->set_version(7);
  there.mutable_statistics()->set_version(8);
  for (const auto& [id, pulls] : std::vector<std::pair<uint64_t, uint64_t>>{{1, 50}, {3, 20}}) {
    v1::HotId* hot = here.mutable_statistics()->add_hottest();
    hot->set_id(id);
    hot->set_pulls(pulls);
  }
  v1::HotId* hot = there.mutable_statistics()->add_hottest();
  hot->set_id(2);
  hot->set_pulls(30);
  RowStalenessCounts row_staleness;
  row_staleness.Add(5);
  row_staleness.ToProto(here.mutable_statistics()->mutable_row_staleness());
  row_staleness.Add(0);
  row_staleness.ToProto(there.mutable_statistics()->mutable_row_staleness());
  const std::vector<v1::TableInfo> sums = SumTables({{here, Info("item", 5)}, {there}}, /*hottest=*/2);
  ASSERT_EQ(sums.size(), 2);
  const v1::TableStatistics& s = sums[0].statistics();
  EXPECT_EQ(s.rows(), 40);
  EXPECT_EQ(s.bytes(), 400);
  EXPECT_DOUBLE_EQ(s.bytes_per_row(), 10.0);
  EXPECT_EQ(s.version(), 8);
  EXPECT_THAT(s.pull_latency().counts(), ElementsAre(1, 3, 4));
  EXPECT_DOUBLE_EQ(s.pull_latency().sum_us(), 80.0);
  EXPECT_THAT(s.staleness_histogram(), ElementsAre(3, 1, 4));
  EXPECT_DOUBLE_EQ(s.staleness_mean(), 9.0 / 8);
  EXPECT_EQ(s.row_staleness().rows(), 3);
  EXPECT_EQ(s.row_staleness().sum(), 10);
  EXPECT_EQ(s.row_staleness().max(), 5);
  EXPECT_THAT(s.row_staleness().histogram(), ElementsAre(1, 0, 0, 0, 2));
  ASSERT_EQ(s.hottest_size(), 2);
  EXPECT_EQ(s.hottest(0).id(), 1);
  EXPECT_EQ(s.hottest(1).id(), 2);
  EXPECT_EQ(sums[1].statistics().rows(), 5);
}

TEST(SumTables, EveryFieldOfTheStatisticsIsSummed) {
  // A field that is added to the message but not to SumTables would keep the first server's value.
  v1::TableInfo one = Info("user", 0);
  const google::protobuf::Reflection* reflection = one.statistics().GetReflection();
  const google::protobuf::Descriptor* descriptor = one.statistics().GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = descriptor->field(i);
    if (field->is_repeated() || field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_UINT64)
      continue;
    reflection->SetUInt64(one.mutable_statistics(), field, 7);
  }
  const v1::TableStatistics sum = SumTables({{one}, {one}}, 0)[0].statistics();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = descriptor->field(i);
    if (field->is_repeated() || field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_UINT64)
      continue;
    const bool is_maximum = field->name() == "version" || field->name() == "staleness_max";
    EXPECT_EQ(reflection->GetUInt64(sum, field), is_maximum ? 7u : 14u) << field->name();
  }
}

TEST(Quantile, IsWithinItsBin) {
  EXPECT_EQ(QuantileUs(v1::LatencyHistogram(), 0.5), 0.0);
  const v1::LatencyHistogram histogram = Latency({0, 0, 0, 98, 0, 2});  // 1.25 to 1.375 us; 1.5 to 1.625
  EXPECT_EQ(CountOf(histogram), 100);
  EXPECT_DOUBLE_EQ(QuantileUs(histogram, 0.5), 1.3125);
  EXPECT_DOUBLE_EQ(QuantileUs(histogram, 0.98), 1.3125);
  EXPECT_DOUBLE_EQ(QuantileUs(histogram, 0.99), 1.5625);
  EXPECT_DOUBLE_EQ(QuantileUs(histogram, 1.0), 1.5625);
  EXPECT_LE(QuantileUs(Latency({5}), 0.99), 1.0);
}

TEST(Quantile, IsWithinATenthOfTheSortedDurations) {
  std::mt19937_64 random(5);
  const std::pair<const char*, std::function<double()>> kinds[] = {
      {"all alike", [] { return 127.3; }},
      {"even", [&] { return std::uniform_real_distribution<double>(20, 400)(random); }},
      {"a long tail", [&] { return std::lognormal_distribution<double>(5, 1.5)(random); }},
      {"fast, and now and then a wait",
       [&] { return random() % 50 == 0 ? 9000.0 + static_cast<double>(random() % 1000) : 35.0; }},
  };
  for (const auto& [name, draw] : kinds) {
    for (const size_t calls : {1u, 2u, 99u, 10000u}) {
      v1::LatencyHistogram histogram;
      for (size_t bin = 0; bin < kLatencyBins; ++bin) histogram.add_counts(0);
      std::vector<double> exact;
      for (size_t i = 0; i < calls; ++i) {
        exact.push_back(std::max(1.0, draw()));
        const size_t bin = LatencyBin(static_cast<uint64_t>(exact.back() * 1000));
        histogram.set_counts(static_cast<int>(bin), histogram.counts(static_cast<int>(bin)) + 1);
      }
      std::sort(exact.begin(), exact.end());
      for (const double quantile : {0.01, 0.5, 0.9, 0.99, 1.0}) {
        const auto rank = static_cast<size_t>(std::ceil(quantile * static_cast<double>(calls)));
        const double is = exact[std::max<size_t>(rank, 1) - 1];
        EXPECT_NEAR(QuantileUs(histogram, quantile), is, 0.1 * is)
            << name << ", " << quantile << " of " << calls;
      }
    }
  }
}

TEST(SinceEarlier, IsWhatWasAdded) {
  EXPECT_THAT(Since(Latency({5, 6}), Latency({2, 6})).counts(), ElementsAre(3, 0));
  // The server was restarted
  EXPECT_THAT(Since(Latency({1, 0}), Latency({2, 6})).counts(), ElementsAre(1, 0));
  EXPECT_THAT(Since(Latency({1, 2}), v1::LatencyHistogram()).counts(), ElementsAre(1, 2));
  EXPECT_THAT(Since(Latency({1, 2, 3}), Latency({1, 1})).counts(), ElementsAre(0, 1, 3))
      << "slower than ever";
  EXPECT_THAT(Since(Latency({4}), Latency({1, 1})).counts(), ElementsAre(4)) << "started anew";
}

}  // namespace
}  // namespace tandem::ps
