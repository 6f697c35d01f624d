// SPDX-License-Identifier: Apache-2.0
// The statistics of servers and tables, after calls for which the numbers are known.

#include "ps/server/table/statistics.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/server/table/hot_keys.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Le;
using ::testing::SizeIs;

TEST(LatencyCounter, HasEightBinsToAnOctave) {
  LatencyCounter counter;
  for (const int64_t ns : {0, 999, 1000, 1124, 1125, 1999, 2000, 4000, 1000000}) {
    counter.Add(std::chrono::nanoseconds(ns));
  }
  counter.Add(std::chrono::hours(100000));
  counter.Add(std::chrono::nanoseconds(-5));  // no clock does that
  v1::LatencyHistogram histogram;
  counter.Export(&histogram);
  ASSERT_EQ(histogram.counts_size(), kLatencyBins);
  EXPECT_EQ(histogram.counts(0), 3);
  EXPECT_EQ(histogram.counts(1), 2);           // 1 to 1.125 us
  EXPECT_EQ(histogram.counts(2), 1);           // to 1.25
  EXPECT_EQ(histogram.counts(8), 1);           // 1.875 to 2
  EXPECT_EQ(histogram.counts(9), 1);           // 2 to 2.25
  EXPECT_EQ(histogram.counts(17), 1);          // 4 to 4.5
  EXPECT_EQ(histogram.counts(1 + 72 + 7), 1);  // 960 to 1024
  EXPECT_EQ(histogram.counts(kLatencyBins - 1), 1);
  EXPECT_GT(histogram.sum_us(), 1000.0);
}

TEST(LatencyCounter, EveryDurationLiesBetweenTheEdgesOfItsBin) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 100000; ++i) {
    const uint64_t ns = random() >> (24 + random() % 40);
    const size_t bin = LatencyBin(ns);
    ASSERT_LE(LatencyBinStartUs(bin) * 1000, static_cast<double>(ns)) << bin;
    if (bin + 1 < kLatencyBins) {
      ASSERT_GT(LatencyBinStartUs(bin + 1) * 1000, static_cast<double>(ns)) << bin;
    }
  }
}

TEST(LatencyCounter, BinsAboveTheSlowestCallAreNotSent) {
  LatencyCounter counter;
  v1::LatencyHistogram histogram;
  counter.Export(&histogram);
  EXPECT_EQ(histogram.counts_size(), 0);
  counter.Add(std::chrono::microseconds(2));
  counter.Export(&histogram);
  EXPECT_EQ(histogram.counts_size(), 10);
}

TEST(HotKeys, FindsTheHeadOfASkewedStream) {
  HotKeys hottest;
  std::mt19937_64 random(3);
  // Half of the pulled ids are 0 to 4, in decreasing shares; the others are spread over a million ids.
  uint64_t total = 0;
  std::vector<uint64_t> times(5);
  for (int call = 0; call < 2000; ++call) {
    std::vector<uint64_t> ids;
    for (int i = 0; i < 1000; ++i) {
      uint64_t id = 1000 + random() % 1000000;
      if (random() % 2 == 0) id = std::min<uint64_t>(std::min(random() % 6, random() % 6), 4);
      if (id < 5) ++times[id];
      ids.push_back(id);
    }
    total += ids.size();
    hottest.Add(ids);
  }
  const std::vector<HotKeys::Hot> top = hottest.Top(5);
  ASSERT_THAT(top, SizeIs(5));
  for (const HotKeys::Hot& hot : top) {
    ASSERT_LT(hot.id, 5);
    // The tolerance is the sampling error: some thousands of ids were counted.
    EXPECT_NEAR(static_cast<double>(hot.pulls), static_cast<double>(times[hot.id]), 0.01 * total);
  }
  EXPECT_EQ(top[0].id, 0);
  EXPECT_EQ(top[1].id, 1);
}

TEST(HotKeys, EveryPlaceOfACallIsAsLikelyToBeCounted) {
  HotKeys hottest;
  std::vector<uint64_t> ids(64);
  for (uint64_t i = 0; i < ids.size(); ++i) ids[i] = i;
  for (int call = 0; call < 8000; ++call) hottest.Add(ids);
  const std::vector<HotKeys::Hot> all = hottest.Top(64);
  ASSERT_THAT(all, SizeIs(64));
  EXPECT_LT(all.front().pulls, 2 * 8000);
  EXPECT_GT(all.back().pulls, 8000 / 2);
}

TEST(HotKeys, MayBeUsedByManyThreads) {
  HotKeys hottest;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&hottest] {
      for (uint64_t i = 0; i < 20000; ++i) hottest.Add({i % 3, 7, i});
    });
  }
  for (int i = 0; i < 20; ++i) EXPECT_THAT(hottest.Top(4).size(), Le(4));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(hottest.Top(1)[0].id, 7);
}

TEST(Statistics, CountCallsRowsBytesAndTime) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(TestTable("user", 4, 1, Async())));
  TANDEM_ASSERT_OK(driver.CreateTable(TestTable("item", 2, 1, Async())));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {1, 2, 3}}, {"item", {1}}, {"user", {4}}}));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {1}}}, /*read_only=*/true));
  TANDEM_ASSERT_OK(driver.Push({}, {{"user", 4, {1}, {1, 1, 1, 1}}, {"user", 4, {2}, {1, 1, 1, 1}}}));
  const v1::TableStatistics user = driver.Table("user").statistics();
  EXPECT_EQ(user.pulls(), 2);  // calls, not slices
  EXPECT_EQ(user.pulled_rows(), 4);
  EXPECT_EQ(user.pull_answer_bytes(), (3 + 1 + 1) * 16);
  EXPECT_EQ(user.pushes(), 1);
  EXPECT_EQ(user.pushed_rows(), 2);
  EXPECT_EQ(user.push_request_bytes(), 2 * (8 + 16));
  const auto count = [](const v1::LatencyHistogram& histogram) {
    return std::accumulate(histogram.counts().begin(), histogram.counts().end(), uint64_t{0});
  };
  EXPECT_EQ(count(user.pull_latency()), 2);
  EXPECT_EQ(count(user.push_latency()), 1);
  EXPECT_GT(user.pull_latency().sum_us(), 0.0);
  EXPECT_EQ(driver.Table("item").statistics().pulls(), 1);
  EXPECT_EQ(driver.Table("item").statistics().pull_answer_bytes(), 8);
}

TEST(Statistics, ALatencyHoldsTheWaitForOtherWorkers) {
  SimulatedClock clock;
  Driver driver({.clock = &clock});
  TANDEM_ASSERT_OK(driver.CreateTable(TestTable("user", 1, 2, Sync())));
  auto waiting = driver.StartPull(0, 1, {{"user", {42}}});
  EXPECT_EQ(driver.Table("user").statistics().pulls(), 0);  // counted when it is answered
  for (uint32_t w : {0, 1}) TANDEM_ASSERT_OK(driver.Push({.worker = w}, {{"user", 1, {42}, {1}}}));
  TANDEM_ASSERT_OK(waiting->Wait());
  EXPECT_EQ(driver.Table("user").statistics().pulls(), 1);
}

TEST(Statistics, HottestIdsAreNamedWhenAskedFor) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(TestTable("user", 1, 1, Async())));
  for (uint64_t i = 0; i < 3000; ++i)
    TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {7, 100 + i, 200000 + i}}}));
  EXPECT_EQ(driver.Table("user").statistics().hottest_size(), 0);
  v1::ListTablesRequest request;
  request.set_hottest(2);
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::ListTablesResponse tables,
                              driver.Call<v1::ListTablesResponse>("ListTables", request));
  ASSERT_EQ(tables.tables(0).statistics().hottest_size(), 2);
  EXPECT_EQ(tables.tables(0).statistics().hottest(0).id(), 7);
}

TEST(Statistics, AServerTellsOfItself) {
  SimulatedClock clock;
  Driver driver({.clock = &clock, .max_parked_bytes = 1 << 20});
  clock.Advance(absl::Seconds(90));
  TANDEM_ASSERT_OK(driver.CreateTable(TestTable("user", 1, 2, Sync())));
  auto waiting = driver.StartPull(0, 1, {{"user", {42}}});
  TANDEM_ASSERT_OK(driver.Push({}, {{"user", 1, {42}, {1}}}));
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const v1::ServerStatistics server,
      driver.Call<v1::ServerStatistics>("GetServerStatistics", v1::GetServerStatisticsRequest()));
  EXPECT_EQ(server.num_servers(), 1);
  EXPECT_DOUBLE_EQ(server.uptime_s(), 90.0);
  EXPECT_EQ(server.parked_calls(), 1);
  EXPECT_GT(server.parked_bytes(), 0);
  EXPECT_EQ(server.kept_bytes(), 20);  // an id, its copy and a gradient
  EXPECT_EQ(server.max_parked_bytes(), 1 << 20);
  EXPECT_GT(server.rss_bytes(), 1 << 20);
  EXPECT_GT(server.cpu_s(), 0.0);
}

}  // namespace
}  // namespace tandem::ps::testing
