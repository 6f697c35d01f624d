// SPDX-License-Identifier: Apache-2.0
// Tests the cache alone, with artificial responses.

#include "ps/client/cache/row_cache.h"

#include <algorithm>
#include <map>
#include <string>
#include <thread>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/client/cache/cached_part.h"
#include "ps/table.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;

constexpr uint32_t kCachedDim = 3;

v1::TableConfig CachedTable(v1::UpdateMode mode = Async(), float learning_rate = 0.5f) {
  v1::TableConfig config = EmbeddingTable("t", kCachedDim, Sgd(learning_rate), Zeros());
  *config.mutable_update_mode() = mode;
  config.set_num_workers(2);
  return config;
}

// A cache, and a server that is a function: row `id` as of version v is {id, v, id + v}.
class Harness {
 public:
  explicit Harness(const CacheOptions& options, uint32_t servers = 1)
      : map_(ShardMap::Even(servers)), cache_(CachedTable(), options, &map_), generations_(servers, 7) {}

  RowCache& cache() { return cache_; }
  std::vector<uint64_t>& generations() { return generations_; }
  static float Number(uint64_t id, uint64_t version, uint32_t d) {
    return static_cast<float>(d == 0 ? id : d == 1 ? version : id + version);
  }

  // The server sends the rows for which `sends(i)`.
  template <typename Sends>
  void Respond(const std::vector<uint64_t>& ids, const std::vector<uint32_t>& requested, uint64_t version,
               const Sends& sends, uint64_t overtaken_by = 0) {
    std::vector<float> rows(ids.size() * kCachedDim);
    std::vector<uint8_t> sent(ids.size());
    std::vector<uint32_t> positions(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      positions[i] = static_cast<uint32_t>(i);
      sent[i] = sends(i);
      for (uint32_t d = 0; d < kCachedDim; ++d) rows[i * kCachedDim + d] = Number(ids[i], version, d);
    }
    const std::vector<uint64_t> versions(generations_.size(), version);
    const std::vector<uint64_t> applied(generations_.size(), version + overtaken_by);
    cache_.Accept({.ids = ids,
                   .requested = requested.data(),
                   .sent = sent.data(),
                   .positions = positions.data(),
                   .rows = rows.data(),
                   .versions = versions,
                   .applied = applied,
                   .generations = generations_});
  }
  void Bring(const std::vector<uint64_t>& ids, uint64_t version) {
    Respond(ids, std::vector<uint32_t>(ids.size(), 0), version, [](size_t) { return true; });
  }
  // Responds like a server with this row.
  void BringRow(uint64_t id, const std::vector<float>& row, uint64_t version) {
    const uint32_t zero = 0;
    const uint8_t sent = 1;
    cache_.Accept({.ids = {&id, 1},
                   .requested = &zero,
                   .sent = &sent,
                   .positions = &zero,
                   .rows = row.data(),
                   .versions = {&version, 1},
                   .applied = {&version, 1},
                   .generations = generations_});
  }
  void Merge(uint64_t id, const std::vector<float>& gradient, float factor = 1) {
    cache_.Merge({&id, 1}, gradient.data(), factor, {}, nullptr);
  }
  struct Found {
    std::vector<float> rows;
    std::vector<uint32_t> versions;
    std::vector<RowCache::Copy> copies;
  };
  Found Find(const std::vector<uint64_t>& ids) {
    Found found{.rows = std::vector<float>(ids.size() * kCachedDim, -1),
                .versions = std::vector<uint32_t>(ids.size()),
                .copies = std::vector<RowCache::Copy>(ids.size())};
    cache_.Find(ids, found.rows.data(), found.versions.data(), found.copies.data());
    return found;
  }

 private:
  const ShardMap map_;
  RowCache cache_;
  std::vector<uint64_t> generations_;
};

TEST(RowCache, GivesBackTheRowsItWasGivenWithTheirVersions) {
  Harness harness({.bytes = 1 << 20});
  EXPECT_THAT(harness.Find({1, 2}).copies, Each(RowCache::kNone));
  harness.Bring({1, 2, 3}, 10);
  harness.Bring({2}, 12);
  const Harness::Found found = harness.Find({3, 9, 2});
  EXPECT_THAT(found.versions, ElementsAre(10, 0, 12));
  EXPECT_THAT(found.copies, ElementsAre(RowCache::kUse, RowCache::kNone, RowCache::kUse));
  EXPECT_THAT(found.rows, ElementsAre(3, 10, 13, -1, -1, -1, 2, 12, 14));
}

TEST(RowCache, AnOlderAnswerThatComesLateDoesNotTakeARowBack) {
  Harness harness({.bytes = 1 << 20});
  harness.Bring({5}, 20);
  harness.Bring({5}, 19);
  EXPECT_THAT(harness.Find({5}).versions, ElementsAre(20));
}

TEST(RowCache, VersionsGoOnPast32Bits) {
  Harness harness({.bytes = 1 << 20});
  harness.Bring({5}, 0xfffffffeull);
  harness.Bring({5}, 0x100000003ull);
  EXPECT_THAT(harness.Find({5}).versions, ElementsAre(3));
  // A version whose low half is 0 would mean "no copy", so the row is not stored.
  harness.Bring({6}, 0x200000000ull);
  EXPECT_THAT(harness.Find({6}).copies, ElementsAre(RowCache::kNone));
}

TEST(RowCache, ACopyServesTwiceAsManyPullsAsItsRowHasComeTimesUpToItsBound) {
  Harness harness({.bytes = 1 << 20, .max_uses = 5});
  for (const int uses : {2, 4, 5, 5}) {
    harness.Bring({5}, 20);
    for (int use = 0; use < uses; ++use) {
      EXPECT_THAT(harness.Find({5}).copies, ElementsAre(RowCache::kUse)) << use;
    }
    const Harness::Found found = harness.Find({5});
    EXPECT_THAT(found.copies, ElementsAre(RowCache::kSpent));
    EXPECT_THAT(found.versions, ElementsAre(0));
    EXPECT_THAT(found.rows, Each(-1));
  }
}

TEST(RowCache, ACopyThatIsTooOldServesOnlyIfItsRowWasNotUpdated) {
  Harness harness({.bytes = 1 << 20, .max_age = 10});
  harness.Bring({5, 6}, 20);
  harness.Bring({7}, 30);  // reports the version of the table
  EXPECT_THAT(harness.Find({5}).copies, ElementsAre(RowCache::kUse));
  harness.Bring({8}, 31);
  harness.Bring({7}, 25);  // a late response with an older version has no effect
  const Harness::Found found = harness.Find({5, 7});
  EXPECT_THAT(found.copies, ElementsAre(RowCache::kOld, RowCache::kUse));
  EXPECT_THAT(found.versions, ElementsAre(20, 30));
  EXPECT_THAT(found.rows, ElementsAre(5, 20, 25, 7, 30, 37));
  // A response about another copy than the present one confirms nothing.
  harness.Respond({6}, {19}, 32, [](size_t) { return false; });
  harness.Respond({5}, {20}, 32, [](size_t) { return false; });
  EXPECT_THAT(harness.Find({6}).versions, ElementsAre(20));
  harness.Respond({5}, {32}, 40, [](size_t) { return false; });  // it is only young enough
  harness.Bring({5}, 41);
  EXPECT_THAT(harness.Find({5}).versions, ElementsAre(41));
}

TEST(RowCache, ACopyAgesWithUpdatesThatOvertakeOneThatTakesLong) {
  Harness harness({.bytes = 1 << 20, .max_age = 5});
  const auto sends_all = [](size_t) { return true; };
  harness.Respond({1}, {0}, 10, sends_all);
  harness.Respond({2}, {0}, 10, sends_all, /*overtaken_by=*/5);
  EXPECT_THAT(harness.Find({1, 2}).copies, Each(RowCache::kUse));
  harness.Respond({3}, {0}, 10, sends_all, /*overtaken_by=*/6);
  EXPECT_THAT(harness.Find({1, 2}).copies, Each(RowCache::kOld));
}

TEST(RowCache, CopiesOfAServerThatStartedAnewAreForgottenThoseOfOthersStay) {
  Harness harness({.bytes = 1 << 20}, /*servers=*/2);
  const ShardMap map = ShardMap::Even(2);
  std::vector<uint64_t> ids(200);
  for (uint64_t i = 0; i < ids.size(); ++i) ids[i] = i;
  harness.Bring(ids, 1000);
  harness.generations()[1] = 8;
  harness.Bring({1000}, 3);
  const Harness::Found found = harness.Find(ids);
  uint64_t forgotten = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(found.versions[i], map.OwnerOf(ids[i]) == 1 ? 0 : 1000) << ids[i];
    forgotten += found.versions[i] == 0;
  }
  EXPECT_EQ(harness.cache().Statistics().forgotten, forgotten);
  EXPECT_THAT(harness.cache().Generations(), ElementsAre(7, 8));
  EXPECT_THAT(harness.Find({1000}).versions, ElementsAre(3));
}

// Compares long random sequences with a map: the cache returns the row that arrived last, and never exceeds
// its budget.
TEST(RowCache, HoldsWhatAMapWouldHoldOfItUnderItsBudget) {
  Harness harness({.bytes = 64 << 10});
  const uint64_t capacity = harness.cache().Statistics().capacity;
  ASSERT_GT(capacity, 500);
  ASSERT_LT(capacity, 3000);
  std::map<uint64_t, uint64_t> model;
  CounterRandom random(3, 4);
  uint64_t found_rows = 0;
  for (uint64_t version = 1; version < 1500; ++version) {
    std::vector<uint64_t> ids(1 + random.Below(60));
    for (uint64_t& id : ids) {
      const uint64_t r = random.Below(10000);
      id = Mix64(r * r / 10000);  // low ids are more frequent
    }
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    const Harness::Found found = harness.Find(ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (found.copies[i] == RowCache::kNone || found.copies[i] == RowCache::kSpent) continue;
      ++found_rows;
      ASSERT_EQ(found.versions[i], model.at(ids[i]));
      for (uint32_t d = 0; d < kCachedDim; ++d) {
        ASSERT_EQ(found.rows[i * kCachedDim + d], Harness::Number(ids[i], model.at(ids[i]), d));
      }
    }
    harness.Respond(ids, found.versions, version, [](size_t) { return true; });
    for (const uint64_t id : ids) model[id] = version;
    if (version % 500 == 0) {  // a server restarts
      ++harness.generations()[0];
    }
    const CacheStatistics statistics = harness.cache().Statistics();
    ASSERT_LE(statistics.rows, capacity);
    ASSERT_LE(statistics.bytes, 64 << 10);
  }
  const CacheStatistics statistics = harness.cache().Statistics();
  EXPECT_GT(found_rows, 5000);
  EXPECT_GT(statistics.evicted, 100);
  EXPECT_GT(statistics.refused, 100);
  EXPECT_GT(statistics.forgotten, 100);
  EXPECT_EQ(statistics.admitted, statistics.rows + statistics.evicted + statistics.forgotten);
}

TEST(RowCache, RowsThatAreUsedOftenStayWhenManyOthersPassBy) {
  Harness harness({.bytes = 64 << 10});
  const uint64_t capacity = harness.cache().Statistics().capacity;
  std::vector<uint64_t> hot(capacity / 2);
  for (size_t i = 0; i < hot.size(); ++i) hot[i] = Mix64(i);
  uint64_t next = 1 << 20;
  for (uint64_t version = 1; version < 60; ++version) {
    const Harness::Found found = harness.Find(hot);
    harness.Respond(hot, found.versions, version, [](size_t) { return true; });
    std::vector<uint64_t> passing(capacity);
    for (uint64_t& id : passing) id = Mix64(next++);
    harness.Find(passing);
    harness.Bring(passing, version);
  }
  const Harness::Found found = harness.Find(hot);
  EXPECT_GT(std::count(found.copies.begin(), found.copies.end(), RowCache::kUse), hot.size() * 95 / 100);
}

TEST(RowCache, GradientsOfARowAreAddedUpUntilTheirBound) {
  Harness harness({.bytes = 1 << 20, .push_bound = 3});
  harness.Bring({5}, 20);
  const std::vector<uint64_t> ids = {5, 9};
  const std::vector<float> gradients = {1, 2, 3, 10, 20, 30};
  DeferredGradients out;
  harness.cache().Merge(ids, gradients.data(), 1, {{21}}, &out, {{4, 6}});
  EXPECT_THAT(out.ids, ElementsAre(9));  // a gradient without a copy cannot be deferred
  EXPECT_THAT(out.sums, ElementsAre(10, 20, 30));
  EXPECT_THAT(out.versions, ElementsAre(21));
  EXPECT_THAT(out.occurrences, ElementsAre(6));
  out.Clear();
  harness.cache().Merge({{5}}, gradients.data(), 1, {{22}}, &out);
  EXPECT_THAT(out.ids, ElementsAre());
  EXPECT_EQ(harness.cache().Statistics().held_rows, 1);
  harness.cache().Merge({{5}}, gradients.data(), 1, {{23}}, &out, {{2}});
  EXPECT_THAT(out.ids, ElementsAre(5));
  EXPECT_THAT(out.sums, ElementsAre(3, 6, 9));
  EXPECT_THAT(out.versions, ElementsAre(21));  // that of the oldest
  EXPECT_THAT(out.occurrences, ElementsAre(4 + 1 + 2));
  EXPECT_EQ(harness.cache().Statistics().held_rows, 0);
  EXPECT_EQ(harness.cache().Statistics().held_gradients, 3);
}

TEST(RowCache, ACopyMovesAsItsRowHasMovedWithGradientsOfThisWorker) {
  Harness harness({.bytes = 1 << 20});
  harness.BringRow(5, {10, 10, 10}, 1);
  harness.Merge(5, {1, 2, 2});
  EXPECT_THAT(harness.Find({5}).rows, ElementsAre(10, 10, 10));  // the step size is unknown
  // 0.5 of the gradient, and orthogonal to it the updates of other workers.
  harness.BringRow(5, {9.5f, 9 + 0.25f, 9 - 0.25f}, 2);
  EXPECT_THAT(harness.Find({5}).rows, ElementsAre(9.5f, 9.25f, 8.75f));
  harness.Merge(5, {0, 2, 0}, /*factor=*/0.5f);
  EXPECT_THAT(harness.Find({5}).rows, ElementsAre(9.5f, 9.25f - 0.5f, 8.75f));
  harness.Merge(5, {1, 0, 0});
  EXPECT_THAT(harness.Find({5}).rows, ElementsAre(9.5f - 0.5f, 9.25f - 0.5f, 8.75f));
  // A row from the server replaces the copy, wherever that has moved.
  harness.BringRow(5, {7, 7, 7}, 3);
  EXPECT_THAT(harness.Find({5}).rows, ElementsAre(7, 7, 7));
}

TEST(RowCache, ACopyGoesNoFurtherThanTwiceWhatItsRowWentBefore) {
  Harness harness({.bytes = 1 << 20});
  harness.BringRow(5, {0, 0, 0}, 1);
  harness.Merge(5, {1e-3f, 0, 0});
  // Mostly updates of other workers: as if a gradient of 1e-3 moved the row by 3.
  harness.BringRow(5, {-3, 0, 4}, 2);
  harness.Merge(5, {100, 0, 0});
  EXPECT_THAT(harness.Find({5}).rows, ElementsAre(FloatNear(-3 - 2 * 5, 1e-4), 0, 4));
  // A row that moved in the opposite direction is not followed.
  harness.BringRow(6, {0, 0, 0}, 1);
  harness.Merge(6, {1, 0, 0});
  harness.BringRow(6, {1, 0, 0}, 2);
  harness.Merge(6, {1, 0, 0});
  EXPECT_THAT(harness.Find({6}).rows, ElementsAre(1, 0, 0));
  // Gradients whose squares underflow or overflow are not followed either.
  for (const float gradient : {1e-30f, 1e30f, 1.0f}) {
    harness.Merge(6, {gradient, gradient, 0});
    EXPECT_THAT(harness.Find({6}).rows, Each(FloatNear(0, 10)));
    harness.BringRow(6, {0, -1, 0}, 3);
  }
}

TEST(RowCache, ARowThatComesAnewLacksWhatIsHeldBack) {
  Harness harness({.bytes = 1 << 20, .push_bound = 2});
  DeferredGradients out;
  const std::vector<float> gradient = {2, 0, 0};
  harness.BringRow(5, {0, 0, 0}, 1);
  for (int i = 0; i < 2; ++i) harness.cache().Merge({{5}}, gradient.data(), 1, {}, &out);
  EXPECT_THAT(out.sums, ElementsAre(4, 0, 0));
  harness.BringRow(5, {-2, 0, 0}, 2);  // 0.5 of the pushed gradient
  harness.cache().Merge({{5}}, gradient.data(), 1, {}, &out);
  EXPECT_THAT(harness.Find({5}).rows, ElementsAre(-2 - 1, 0, 0));
  harness.BringRow(5, {-2, 0, 0}, 3);
  EXPECT_THAT(harness.Find({5}).rows, ElementsAre(-2 - 1, 0, 0));
}

// Compares the sums of merged and sent gradients over evictions, new generations, bounds and flushes, with
// several threads.
TEST(RowCache, LosesNoGradient) {
  Harness harness({.bytes = 48 << 10, .push_bound = 4});
  constexpr int kThreads = 3;
  std::vector<std::map<uint64_t, std::vector<double>>> in(kThreads), came_out(kThreads);
  std::vector<std::thread> threads;
  const auto add = [](const DeferredGradients& held, std::map<uint64_t, std::vector<double>>* sums) {
    for (size_t i = 0; i < held.ids.size(); ++i) {
      std::vector<double>& sum = sums->try_emplace(held.ids[i], kCachedDim + 1).first->second;
      for (uint32_t d = 0; d < kCachedDim; ++d) sum[d] += held.sums[i * kCachedDim + d];
      sum[kCachedDim] += held.occurrences[i];
    }
  };
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      CounterRandom random(5, t);
      const ShardMap map = ShardMap::Even(1);
      for (uint64_t step = 1; step < 400; ++step) {
        std::vector<uint64_t> ids(40);
        for (uint64_t& id : ids) id = random.Below(1 + random.Below(1500));
        std::vector<float> rows(ids.size() * kCachedDim), gradients(ids.size() * kCachedDim);
        std::vector<uint32_t> versions(ids.size()), positions(ids.size());
        std::vector<RowCache::Copy> copies(ids.size());
        std::vector<uint8_t> sent(ids.size());
        harness.cache().Find(ids, rows.data(), versions.data(), copies.data());
        for (size_t i = 0; i < ids.size(); ++i) {
          positions[i] = static_cast<uint32_t>(i);
          sent[i] = versions[i] == 0 || random.Below(4) == 0;
          for (uint32_t d = 0; d < kCachedDim; ++d)
            gradients[i * kCachedDim + d] = static_cast<float>(random.Below(16)) / 8 - 1;
        }
        const uint64_t server_version[] = {step}, generation[] = {1 + step / 150};
        harness.cache().Accept({.ids = ids,
                                .requested = versions.data(),
                                .sent = sent.data(),
                                .positions = positions.data(),
                                .rows = rows.data(),
                                .versions = server_version,
                                .applied = server_version,
                                .generations = generation});
        std::vector<uint32_t> occurrences(ids.size());
        for (uint32_t& number : occurrences) number = static_cast<uint32_t>(1 + random.Below(5));
        DeferredGradients mine{.ids = ids, .versions = {}, .occurrences = occurrences, .sums = gradients};
        add(mine, &in[t]);
        DeferredGradients out;
        harness.cache().Merge(ids, gradients.data(), 1, server_version, &out, occurrences);
        std::vector<uint64_t> pulled;
        // Not in the last steps: the cache must still hold gradients at the end, whichever thread ends last.
        if (random.Below(50) == 0 && step < 350) harness.cache().TakeDeferred(&out, &pulled);
        add(out, &came_out[t]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  DeferredGradients rest;
  std::vector<uint64_t> pulled;
  harness.cache().TakeDeferred(&rest, &pulled);
  EXPECT_THAT(pulled, ElementsAre(399));
  EXPECT_FALSE(rest.ids.empty());
  add(rest, &came_out[0]);
  std::map<uint64_t, std::vector<double>> total;
  for (int t = 0; t < kThreads; ++t) {
    for (const auto& [id, sum] : in[t]) {
      std::vector<double>& all = total.try_emplace(id, sum.size()).first->second;
      for (size_t d = 0; d < sum.size(); ++d) all[d] += sum[d];
    }
    for (const auto& [id, sum] : came_out[t]) {
      std::vector<double>& all = total.try_emplace(id, sum.size()).first->second;
      for (size_t d = 0; d < sum.size(); ++d) all[d] -= sum[d];
    }
  }
  for (const auto& [id, sum] : total) EXPECT_THAT(sum, Each(0.0)) << id;
  const CacheStatistics statistics = harness.cache().Statistics();
  EXPECT_EQ(statistics.held_rows, 0);
  EXPECT_GT(statistics.evicted, 0);
  EXPECT_GT(statistics.held_gradients, 1000);
}

TEST(SortIds, SortsWithPositions) {
  CounterRandom random(1, 1);
  for (const int bits : {1, 11, 12, 20, 45, 64}) {
    std::vector<uint64_t> ids(1 + random.Below(3000));
    std::vector<uint32_t> positions(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = random() >> (64 - bits);
      positions[i] = static_cast<uint32_t>(i);
    }
    const std::vector<uint64_t> before = ids;
    SortIds(&ids, &positions);
    EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
    for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(ids[i], before[positions[i]]);
    std::sort(positions.begin(), positions.end());
    for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(positions[i], i);
  }
}

TEST(CacheOptions, WhatWouldBreakATablesPromiseIsRefused) {
  const CacheOptions good = {.bytes = 1 << 20};
  TANDEM_EXPECT_OK(ValidateCacheOptions(CachedTable(Async()), good));
  TANDEM_EXPECT_OK(ValidateCacheOptions(CachedTable(Bounded(4)), good));
  TANDEM_EXPECT_OK(ValidateCacheOptions(CachedTable(Sync()), {}));  // no cache
  const auto refused = [](const v1::TableConfig& table, const CacheOptions& options, const std::string& why) {
    EXPECT_THAT(ValidateCacheOptions(table, options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  refused(CachedTable(Sync()), good, "'t': cache: the table is synchronous");
  refused(DenseTable("d", 10, Sgd(1), Zeros()), good, "dense");
  refused(CachedTable(), {.bytes = 100}, "bytes is 100");
  refused(CachedTable(), {.bytes = 1 << 20, .max_age = uint64_t{1} << 31}, "max_age");
  refused(CachedTable(), {.bytes = 1 << 20, .max_uses = 0}, "max_uses is 0");
  refused(CachedTable(), {.bytes = 1 << 20, .push_bound = 0}, "push_bound is 0");
  v1::UpdateMode gba;
  gba.set_kind(v1::UpdateMode::GBA);
  gba.set_staleness(50);
  gba.set_global_batch(4);
  refused(CachedTable(gba), {.bytes = 1 << 20, .max_age = 50}, "staleness of 50");
  refused(CachedTable(gba), {.bytes = 1 << 20, .max_age = 10, .push_bound = 2}, "push_bound must be 1");
  TANDEM_EXPECT_OK(ValidateCacheOptions(CachedTable(gba), {.bytes = 1 << 20, .max_age = 49}));
}

}  // namespace
}  // namespace tandem::ps
