// SPDX-License-Identifier: Apache-2.0
#include "ps/server/table/row_staleness_meter.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(RowStalenessCounts, EveryNumberIsInTheBinThatBeginsAtOrBelowIt) {
  for (uint64_t staleness = 0; staleness < 40000; ++staleness) {
    const size_t bin = RowStalenessCounts::BinOf(staleness);
    ASSERT_LE(RowStalenessCounts::BinStart(bin), staleness);
    ASSERT_GT(RowStalenessCounts::BinStart(bin + 1), staleness) << staleness;
  }
  EXPECT_EQ(RowStalenessCounts::BinOf(~uint64_t{0}), RowStalenessCounts::kBins - 1);
}

TEST(RowStalenessCounts, QuantilesAreWithinTheirBins) {
  RowStalenessCounts counts;
  EXPECT_EQ(counts.Quantile(0.99), 0);
  for (int i = 0; i < 97; ++i) counts.Add(0);
  counts.Add(2);
  counts.Add(9);
  counts.Add(40);
  EXPECT_EQ(counts.Quantile(0.5), 0);
  EXPECT_EQ(counts.Quantile(0.98), 2);
  EXPECT_EQ(counts.Quantile(0.99), 11);  // the bin of 8 to 11
  EXPECT_EQ(counts.Quantile(1.0), 40);
  EXPECT_DOUBLE_EQ(counts.Mean(), 0.51);
}

// A clock that stands still: measuring takes no time, so periods follow each other without a pause.
int64_t StandingClock() { return 0; }
// A clock that a test sets, and that advances by a microsecond when it is read.
int64_t test_now_ns = 0;
int64_t TestClock() { return test_now_ns += 1000; }

// One table whose updates are counted, and a model: for each id the numbers of the updates that had it.
class Table {
 public:
  using Segments = RowStalenessMeter::Segments;

  explicit Table(int64_t (*clock)() = StandingClock,
                 std::shared_ptr<std::atomic<int64_t>> measured_tables = nullptr)
      : meter_(std::move(measured_tables), clock) {}

  // Counts an update of pushes of `ids`, based on the given versions.
  std::vector<Segments> Update(const std::vector<std::vector<uint64_t>>& ids,
                               const std::vector<uint64_t>& versions,
                               const std::vector<uint32_t>& segment_ends = {}) {
    std::vector<TablePush> pushes(ids.size());
    std::vector<const TablePush*> pointers;
    for (size_t p = 0; p < ids.size(); ++p) {
      pushes[p].ids = ids[p];
      pushes[p].pulled_version = versions[p];
      pushes[p].segment_ends = segment_ends;
      pointers.push_back(&pushes[p]);
    }
    std::vector<Segments> segments;
    meter_.CountUpdate(pointers, &version_, &segments);
    const uint64_t update = version_;
    for (size_t p = 0; p < ids.size(); ++p) {
      for (const uint64_t id : ids[p]) model_now_.Add(Staleness(id, versions[p], update));
    }
    for (const std::vector<uint64_t>& some : ids) {
      for (const uint64_t id : some) {
        std::vector<uint64_t>& of_id = updates_[id];
        if (of_id.empty() || of_id.back() != update) of_id.push_back(update);
      }
    }
    return segments;
  }
  // Counts an update of one push, without the model.
  void Count(const TablePush& push, std::vector<Segments>* segments) {
    const TablePush* const pointer = &push;
    meter_.CountUpdate({&pointer, 1}, &version_, segments);
  }
  // Returns the number of the row's updates in (pulled, update).
  uint64_t Staleness(uint64_t id, uint64_t pulled, uint64_t update) const {
    const auto found = updates_.find(id);
    if (found == updates_.end()) return 0;
    return static_cast<uint64_t>(std::count_if(found->second.begin(), found->second.end(),
                                               [&](uint64_t u) { return u > pulled && u < update; }));
  }
  uint64_t version() const { return version_; }
  RowStalenessMeter& meter() { return meter_; }
  // Returns the counts of a meter that measures all updates.
  const RowStalenessCounts& model() const { return model_now_; }
  void ResetModel() { model_now_ = {}; }

 private:
  RowStalenessMeter meter_;
  std::atomic<uint64_t> version_{0};
  std::map<uint64_t, std::vector<uint64_t>> updates_;
  RowStalenessCounts model_now_;
};

// Ids of a skewed distribution: small ones are frequent.
std::vector<uint64_t> SkewedIds(CounterRandom* random, size_t count, uint64_t range) {
  std::vector<uint64_t> ids(count);
  for (uint64_t& id : ids) {
    const double u = random->UniformDouble();
    id = static_cast<uint64_t>(u * u * u * static_cast<double>(range));
  }
  return ids;
}

TEST(RowStalenessMeter, CountsWhatAListOfAllUpdatesWould) {
  Table table;
  CounterRandom random(1, 0);
  // Every gradient of the first period counts: delays are shorter than the updates so far.
  for (uint64_t u = 0; u < RowStalenessMeter::kFirstPeriod; ++u) {
    const uint64_t pulled = table.version() - std::min(table.version(), random.Below(40));
    table.Update({SkewedIds(&random, 50, 3000)}, {pulled});
  }
  const RowStalenessCounts counts = table.meter().Counts();
  EXPECT_EQ(counts.rows, table.model().rows);
  EXPECT_EQ(counts.sum, table.model().sum);
  EXPECT_EQ(counts.max, table.model().max);
  EXPECT_EQ(counts.histogram, table.model().histogram);
  EXPECT_GT(counts.max, 10u);
}

TEST(RowStalenessMeter, PushesThatAreMergedIntoOneUpdateAreNotStaleToEachOther) {
  Table table;
  CounterRandom random(2, 0);
  for (uint64_t u = 0; u < 60; ++u) {
    const uint64_t pulled = table.version() - std::min(table.version(), random.Below(5));
    table.Update({{1, 2, 3}, {2, 3, 3, 4}}, {pulled, table.version()});
  }
  EXPECT_EQ(table.meter().Counts().histogram, table.model().histogram);
}

TEST(RowStalenessMeter, MeasuresForAHundredthOfTheTime) {
  Table table(TestClock);
  const auto update = [&](uint64_t updates) {
    for (uint64_t u = 0; u < updates; ++u) table.Update({{7}}, {table.version()});
  };
  update(2 * RowStalenessMeter::kFirstPeriod);
  EXPECT_EQ(table.meter().Counts().rows, RowStalenessMeter::kFirstPeriod);
  // Measuring an update took a microsecond, and as long between two. After a hundred times that it goes on.
  test_now_ns += 90 * 1000 * static_cast<int64_t>(RowStalenessMeter::kFirstPeriod);
  update(1000);
  EXPECT_EQ(table.meter().Counts().rows, RowStalenessMeter::kFirstPeriod);
  test_now_ns += 20 * 1000 * static_cast<int64_t>(RowStalenessMeter::kFirstPeriod);
  update(1000);
  EXPECT_EQ(table.meter().Counts().rows, RowStalenessMeter::kFirstPeriod + RowStalenessMeter::kPeriod);
}

TEST(RowStalenessMeter, TheTablesOfAServerShareTheHundredth) {
  const auto tables = std::make_shared<std::atomic<int64_t>>(0);
  Table table(TestClock, tables);
  const auto update = [](Table* of, uint64_t updates) {
    for (uint64_t u = 0; u < updates; ++u) of->Update({{7}}, {of->version()});
  };
  update(&table, RowStalenessMeter::kFirstPeriod);
  {
    Table other(TestClock, tables), idle(TestClock, tables);
    update(&other, 1);
    EXPECT_EQ(*tables, 2);  // a table without updates does not count
    // A hundred times what measuring took passes, and more, but not two hundred times.
    test_now_ns += 190 * 1000 * static_cast<int64_t>(RowStalenessMeter::kFirstPeriod);
    update(&table, 100);
    EXPECT_EQ(table.meter().Counts().rows, RowStalenessMeter::kFirstPeriod);
  }
  EXPECT_EQ(*tables, 1);
  update(&table, 1000);
  EXPECT_EQ(table.meter().Counts().rows, RowStalenessMeter::kFirstPeriod + RowStalenessMeter::kPeriod);
}

TEST(RowStalenessMeter, MeasuresWithoutAPauseWhereThatTakesNoTime) {
  Table table;
  for (uint64_t u = 0; u < 2000; ++u) table.Update({{7}}, {table.version()});
  EXPECT_GT(table.meter().Counts().rows, 1900);
}

TEST(RowStalenessMeter, AGradientFromBeforeThePeriodDoesNotCount) {
  Table table;
  for (uint64_t u = 0; u < RowStalenessMeter::kFirstPeriod + 100; ++u) table.Update({{7}}, {table.version()});
  table.meter().Restart();
  table.ResetModel();
  const uint64_t before = table.meter().Counts().rows;
  for (uint64_t u = 0; u < 20; ++u) table.Update({{7}}, {table.version() - 8});
  EXPECT_EQ(table.meter().Counts().rows, before + 12);  // the first eight are based on earlier updates
  EXPECT_EQ(table.meter().Counts().sum, 12u * 8);
}

TEST(RowStalenessMeter, ARowThatIsInEveryUpdateIsAsStaleAsItsPushesHoweverLateTheyAre) {
  for (const uint64_t delay : {1, 8, 63, 64, 100, 200}) {
    Table table;
    for (uint64_t u = 0; u < 2 * RowStalenessMeter::kFirstPeriod; ++u) {
      table.Update({{7, 1000 + u}}, {table.version() - std::min(table.version(), delay)});
    }
    const RowStalenessCounts counts = table.meter().Counts();
    EXPECT_EQ(counts.max, delay);
    EXPECT_GE(counts.histogram[0], counts.rows / 2) << "the other row is always new";
  }
}

TEST(RowStalenessMeter, ReturnsTheCountsOfEachSegment) {
  Table table;
  for (uint64_t u = 0; u < 10; ++u) table.Update({{1, 2, 2, 3}}, {table.version()}, {1, 1, 4});
  const auto segments = table.Update({{1, 2, 2, 3}}, {table.version() - 4}, {1, 1, 4});
  ASSERT_THAT(segments, SizeIs(1));
  ASSERT_THAT(segments[0], SizeIs(3));
  EXPECT_EQ(segments[0][0].rows, 1);
  EXPECT_EQ(segments[0][0].sum, 4);
  EXPECT_EQ(segments[0][1].rows, 0);
  EXPECT_EQ(segments[0][2].rows, 3);
  EXPECT_EQ(segments[0][2].sum, 12);
  EXPECT_EQ(segments[0][2].max, 4);
}

TEST(RowStalenessMeter, FindsAllRowsOfASmallVocabularyHottestFirst) {
  Table table;
  CounterRandom random(3, 0);
  constexpr uint64_t kDelay = 8;
  std::vector<int> updates(3000);
  constexpr uint64_t kUpdates = 200;
  for (uint64_t u = 0; u < kUpdates; ++u) {
    std::vector<uint64_t> ids = SkewedIds(&random, 500, 3000);
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    for (const uint64_t id : ids) ++updates[id];
    table.Update({ids}, {table.version() - std::min(table.version(), kDelay)});
  }
  const auto hot = table.meter().Frequent(1.0, 10000);
  EXPECT_EQ(hot.updates, kUpdates);
  EXPECT_NEAR(hot.mean_staleness, kDelay, 0.2);
  size_t expected = 0;
  for (uint64_t id = 0; id < updates.size(); ++id) {
    expected += updates[id] * hot.mean_staleness / kUpdates >= 1.0 ? 1 : 0;
  }
  EXPECT_THAT(hot.rows, SizeIs(expected));
  EXPECT_GT(expected, 100u);
  for (size_t i = 0; i < hot.rows.size(); ++i) {
    EXPECT_DOUBLE_EQ(hot.rows[i].update_rate, updates[hot.rows[i].id] / double{kUpdates});
    const size_t before = i > 0 ? i - 1 : 0;
    EXPECT_LE(hot.rows[i].row_staleness, hot.rows[before].row_staleness);
  }
  EXPECT_THAT(table.meter().Frequent(1.0, 5).rows, SizeIs(5));
  EXPECT_EQ(table.meter().Frequent(0, 10000).rows.size(),
            static_cast<size_t>(std::count_if(updates.begin(), updates.end(), [](int n) { return n > 0; })));
}

TEST(RowStalenessMeter, NamesNoRowBeforeItHasEnoughUpdates) {
  Table table;
  for (uint64_t u = 0; u + 1 < RowStalenessMeter::kEnoughUpdates; ++u) table.Update({{7}}, {0});
  EXPECT_THAT(table.meter().Frequent(0, 10).rows, IsEmpty());
  table.Update({{7}}, {0});
  EXPECT_THAT(table.meter().Frequent(0, 10).rows, SizeIs(1));
  table.meter().Forget();
  EXPECT_THAT(table.meter().Frequent(0, 10).rows, IsEmpty());
}

TEST(RowStalenessMeter, HotRowsAreFoundAmongMoreIdsThanItHasSlots) {
  Table table;
  CounterRandom random(4, 0);
  constexpr uint64_t kHot = 100;
  constexpr uint64_t kDelay = 10;
  RowStalenessCounts cold;
  constexpr uint64_t kUpdates = 24 * RowStalenessMeter::kPeriod;
  for (uint64_t u = 0; u < kUpdates; ++u) {
    std::vector<uint64_t> ids(12000);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = i < kHot ? i : 1000 + random.Below(2000000);
    TablePush push;
    push.ids = ids;
    push.pulled_version = table.version() - std::min(table.version(), kDelay);
    std::vector<RowStalenessMeter::Segments> segments;
    push.segment_ends = {static_cast<uint32_t>(std::min<size_t>(kHot, ids.size())),
                         static_cast<uint32_t>(ids.size())};
    table.Count(push, &segments);
    if (u > kUpdates / 2 && !segments.empty() && segments[0].size() == 2) {
      cold.Add(segments[0][1]);
    }
  }
  // Ten updates of 11900 of 2 million ids: a row was in 0.0595 of them on average.
  EXPECT_GT(cold.rows, 1000000u);
  EXPECT_NEAR(cold.Mean(), 0.0594, 0.003);
  const auto hot = table.meter().Frequent(2.0, 1000);
  EXPECT_THAT(hot.rows, SizeIs(kHot));
}

TEST(RowStalenessMeter, MayBeUsedByManyThreads) {
  RowStalenessMeter meter;
  std::atomic<uint64_t> version{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::vector<uint64_t> ids = {1, 2, 100 + t};
      for (int i = 0; i < 2000; ++i) {
        TablePush push;
        push.ids = ids;
        push.pulled_version = version.load();
        const TablePush* const pointer = &push;
        std::vector<RowStalenessMeter::Segments> segments;
        meter.CountUpdate({&pointer, 1}, &version, &segments);
        if (i % 500 == 0) meter.Restart();
      }
    });
  }
  for (int i = 0; i < 100; ++i) meter.Frequent(0, 100);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(version, 8000);
  EXPECT_THAT(meter.Counts().rows, Ge(3 * RowStalenessMeter::kFirstPeriod / 2));
}

}  // namespace
}  // namespace tandem::ps
