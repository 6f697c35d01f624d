// SPDX-License-Identifier: Apache-2.0
#include "replay/table/table.h"

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/replay/items.h"
#include "tests/testing/status_matchers.h"

namespace tandem::replay {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IdItem;
using testing::IdItems;
using testing::IdsOf;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kLate = absl::StatusCode::kDeadlineExceeded;
const absl::Time kNow = absl::InfinitePast();  // a call with this deadline does not wait

std::shared_ptr<Table> Make(const TableOptions& options, Clock* clock = Clock::Real()) {
  auto table = Table::Create(options, clock);
  TANDEM_CHECK_MSG(table.ok(), table.status().ToString());
  return *table;
}

TEST(Table, AQueueGivesItemsInOrderAndOnce) {
  const auto table = Make(TableOptions::Queue("queue", 3));
  TANDEM_ASSERT_OK(table->Insert(IdItems(1, 3)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Sample sample, table->SampleItems({.batch = 3}));
  EXPECT_THAT(IdsOf(sample), ElementsAre(1, 2, 3));
  EXPECT_EQ(sample.items[0].probability, 1);
  const TableInfo info = table->Info();
  EXPECT_EQ(info.items, 0u);
  EXPECT_EQ(info.bytes, 0u);
  EXPECT_EQ(info.removals.consumed, 3u);
}

// One of ten items is large. Random draws are compared with those of an equal table without the limit.
TEST(Table, ASampleWithinALimitOfBytesDrawsTheSameItemsOrNone) {
  constexpr uint64_t kLimit = 100;
  int refused = 0, cut = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    TableOptions options = TableOptions::Uniform("replay", 100, 1);
    options.seed = seed;
    const auto table = Make(options), twin = Make(options);
    for (const auto& one : {table, twin}) {
      TANDEM_ASSERT_OK(one->Insert(IdItems(0, 9)));
      const auto layout = testing::IdLayout();
      TANDEM_ASSERT_OK(one->Insert({testing::ItemOf(layout, testing::IdChunk(layout, 9, 20), 0, 20)}));
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(const Sample expected, twin->SampleItems({.batch = 4}));
    std::vector<int64_t> fitting;
    for (const int64_t id : IdsOf(expected)) {
      if (id == 9) break;
      fitting.push_back(id);
    }
    const auto whole = table->SampleItems({.batch = 4, .max_bytes = kLimit});
    if (fitting.size() == 4) {
      TANDEM_ASSERT_OK(whole);
      EXPECT_THAT(IdsOf(*whole), ::testing::ElementsAreArray(fitting));
      continue;
    }
    ++refused;
    EXPECT_THAT(whole, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("an item has up to 160 bytes, and a response may have 100")));
    EXPECT_EQ(table->Info().samples, 0u);
    const auto part = table->SampleItems({.batch = 4, .min_batch = 1, .max_bytes = kLimit});
    if (fitting.empty()) {
      EXPECT_THAT(part, StatusIs(absl::StatusCode::kResourceExhausted));
      continue;
    }
    ++cut;
    TANDEM_ASSERT_OK(part);
    EXPECT_THAT(IdsOf(*part), ::testing::ElementsAreArray(fitting));
  }
  EXPECT_GT(refused, 3);
  EXPECT_GT(cut, 3);
}

// Returns an item of one chunk with these values.
NewItem LongItem(int64_t first, uint32_t steps, double priority = 1) {
  const auto layout = testing::IdLayout();
  return testing::ItemOf(layout, testing::IdChunk(layout, first, steps), 0, steps, priority);
}

// A large item that has left, or that does not come next, does not count.
TEST(Table, ABatchOfAQueueCountsTheBytesOfTheItemsThatComeNext) {
  for (const SelectorKind kind : {SelectorKind::kFifo, SelectorKind::kLowest}) {
    TableOptions options = TableOptions::Queue("queue", 200);
    options.sampler.kind = kind;
    const auto table = Make(options);
    TANDEM_ASSERT_OK(table->Insert({LongItem(0, 20)}));
    TANDEM_ASSERT_OK(table->Insert({LongItem(1, 1)}));
    TANDEM_ASSERT_OK(table->SampleItems({.batch = 1}));
    std::vector<NewItem> items;
    for (int64_t id = 2; id < 40; ++id) items.push_back(LongItem(id, 1));
    TANDEM_ASSERT_OK(table->Insert(std::move(items)));
    TANDEM_ASSERT_OK_AND_ASSIGN(const Sample sample, table->SampleItems({.batch = 20, .max_bytes = 400}));
    EXPECT_EQ(sample.items.size(), 20u) << Name(kind);
    EXPECT_EQ(IdsOf(sample)[0], 1);
    EXPECT_EQ(IdsOf(sample)[19], 20);
    TANDEM_ASSERT_OK(table->Insert({LongItem(100, 30, 0.5)}));
    const bool first = kind == SelectorKind::kLowest;  // the large item comes next; else last
    TANDEM_ASSERT_OK_AND_ASSIGN(const Sample next, table->SampleItems({.batch = 2, .max_bytes = 250}));
    EXPECT_EQ(IdsOf(next)[0], first ? 100 : 21);
    EXPECT_EQ(IdsOf(next)[1], first ? 21 : 22);
  }
}

TEST(Table, ABatchOfRandomItemsThatLeaveCountsTheLargestItemThatIsThere) {
  TableOptions options = TableOptions::Queue("queue", 200);
  options.sampler.kind = SelectorKind::kUniform;
  options.remover.kind = SelectorKind::kFifo;
  options.max_items = 30;
  options.limit = {};
  const auto table = Make(options);
  TANDEM_ASSERT_OK(table->Insert({LongItem(0, 20)}));
  for (int64_t id = 1; id <= 30; ++id)
    TANDEM_ASSERT_OK(table->Insert({LongItem(id, 1)}));  // the first leaves
  TANDEM_ASSERT_OK_AND_ASSIGN(const Sample sample, table->SampleItems({.batch = 20, .max_bytes = 160}));
  EXPECT_EQ(sample.items.size(), 20u);
}

TEST(Table, AStackGivesTheNewestItemFirst) {
  const auto table = Make(TableOptions::Stack("stack", 3));
  TANDEM_ASSERT_OK(table->Insert(IdItems(1, 3)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Sample sample, table->SampleItems({.batch = 2}));
  EXPECT_THAT(IdsOf(sample), ElementsAre(3, 2));
}

TEST(Table, InsertsThatMustWaitSayWhyAndWhoSampledLast) {
  SimulatedClock clock;
  const auto table = Make(TableOptions::Queue("queue", 2), &clock);
  size_t inserted = 9;
  EXPECT_THAT(table->Insert(IdItems(1, 3), "actor/0", kNow, &inserted),
              StatusIs(kLate,
                       "table 'queue' takes no inserts: 2 inserts x 1 - 0 samples reaches max_diff 2; nobody "
                       "has sampled yet"));
  EXPECT_EQ(inserted, 2u) << "the items that the limiter permitted are in the table";
  TANDEM_ASSERT_OK(table->SampleItems({.batch = 1}, "learner/0"));
  clock.Advance(absl::Seconds(41));
  EXPECT_THAT(table->Insert(IdItems(3, 2), "actor/0", kNow, &inserted),
              StatusIs(kLate, HasSubstr("reaches max_diff 2; learner/0 last sampled 41 s ago")));
  EXPECT_EQ(inserted, 1u);
}

TEST(Table, SamplesThatMustWaitSayWhyAndWhoInsertedLast) {
  SimulatedClock clock;
  const auto table = Make(TableOptions::Uniform("replay", 100, 10), &clock);
  TANDEM_ASSERT_OK(table->Insert(IdItems(1, 4), "actor/7"));
  clock.Advance(absl::Seconds(3));
  EXPECT_THAT(table->SampleItems({.batch = 1}, "", kNow),
              StatusIs(kLate,
                       "table 'replay' gives no samples: it holds 4 items, and min_size is 10; actor/7 last "
                       "inserted 3 s ago"));
  EXPECT_EQ(table->Info().why_no_insert, "");
}

TEST(Table, WaitingCallsProceedAsSoonAsTheyMay) {
  const auto table = Make(TableOptions::Queue("queue", 1));
  std::vector<int64_t> ids;
  std::thread sampler([&] {
    for (int i = 0; i < 100; ++i) {
      const auto sample = table->SampleItems({.batch = 1});
      ASSERT_THAT(sample, IsOk());
      ids.push_back(IdsOf(*sample)[0]);
    }
  });
  for (int i = 0; i < 100; ++i) TANDEM_EXPECT_OK(table->Insert(IdItems(i, 1)));
  sampler.join();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ids[static_cast<size_t>(i)], i);
}

TEST(Table, AnAsynchronousCallHoldsNoThreadAndEndsAtItsExpiry) {
  const auto table = Make(TableOptions::Queue("queue", 1));
  absl::Status sampled, inserted;
  const uint64_t sample =
      table->StartSample({.batch = 1}, "", [&](absl::StatusOr<Sample> result) { sampled = result.status(); });
  ASSERT_NE(sample, 0u);
  EXPECT_EQ(table->Info().waiting_samples, 1u);
  table->Expire(sample);
  EXPECT_THAT(sampled, StatusIs(kLate, HasSubstr("it holds 0 items, and min_size is 1")));
  table->Expire(sample);  // without effect

  const uint64_t insert = table->StartInsert(IdItems(1, 2), "", {}, [&](absl::Status status, size_t n) {
    inserted = status;
    EXPECT_EQ(n, 1u);
  });
  ASSERT_NE(insert, 0u);
  table->Cancel(insert, absl::CancelledError("gone"));
  EXPECT_THAT(inserted, StatusIs(absl::StatusCode::kCancelled, "gone"));
}

TEST(Table, StopEndsAllCalls) {
  const auto table = Make(TableOptions::Queue("queue", 1));
  std::thread waiting(
      [&] { EXPECT_THAT(table->SampleItems({.batch = 1}), StatusIs(absl::StatusCode::kCancelled)); });
  while (table->Info().waiting_samples == 0) std::this_thread::yield();
  table->Stop();
  waiting.join();
  EXPECT_THAT(table->Insert(IdItems(1, 1)), StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped")));
}

TEST(Table, RefusedItemsLeaveTheTableAsItWas) {
  TableOptions options = TableOptions::Prioritized("replay", 10, 1, 2.0);
  options.max_bytes = 64;
  const auto table = Make(options);
  TANDEM_ASSERT_OK(table->Insert({IdItem(1, 2.0)}));
  const auto layout = testing::IdLayout();
  const auto chunk = testing::IdChunk(layout, 5, 3);
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const auto expect_refused = [&](NewItem item, const std::string& why, absl::StatusCode code = kInvalid) {
    size_t inserted = 9;
    EXPECT_THAT(table->Insert({IdItem(2), std::move(item)}, "", kNow, &inserted),
                StatusIs(code, ::testing::AllOf(HasSubstr("table 'replay'"), HasSubstr(why))));
    EXPECT_EQ(inserted, 0u);
  };
  expect_refused(IdItem(3, nan), "priority nan");
  expect_refused(IdItem(3, infinity), "priority inf");
  expect_refused(IdItem(3, -1.0), "priority -1");
  expect_refused(IdItem(3, 1e200), "2^990");
  expect_refused(IdItem(3, 1.0, testing::IdLayout("other")), "columns [other i64]; the table has [id i64]");
  expect_refused(testing::ItemOf(layout, chunk, 2, 2), "steps [2, 4) of a chunk of 3 steps");
  expect_refused(testing::ItemOf(layout, chunk, 0xffffffff, 2), "of a chunk of 3 steps");
  expect_refused(testing::ItemOf(layout, chunk, 0, 0), "of a chunk of 3 steps");
  expect_refused(NewItem(), "no content");
  expect_refused(testing::ItemOf(layout, testing::IdChunk(layout, 5, 9), 0, 1), "max_bytes is 64",
                 absl::StatusCode::kResourceExhausted);
  NewItem wrong_chunk = testing::ItemOf(layout, chunk, 0, 1);
  auto trajectory = std::make_shared<Trajectory>(*wrong_chunk.trajectory);
  trajectory->slices[0].chunk = 1;
  expect_refused({.trajectory = trajectory}, "chunk 1 of 1");

  const TableInfo info = table->Info();
  EXPECT_EQ(info.items, 1u);
  EXPECT_EQ(info.inserts, 1u);
  EXPECT_EQ(info.mass, 4);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Sample sample, table->SampleItems({.batch = 1}));
  EXPECT_THAT(IdsOf(sample), ElementsAre(1));
}

TEST(Table, RefusedPriorityUpdatesChangeNothing) {
  const auto table = Make(TableOptions::Prioritized("replay", 10, 1, 1.0));
  TANDEM_ASSERT_OK(table->Insert({IdItem(1, 2.0)}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Sample sample, table->SampleItems({.batch = 1}));
  const uint64_t key = sample.items[0].key;
  for (const double wrong : {std::nan(""), std::numeric_limits<double>::infinity(), -0.5}) {
    EXPECT_THAT(table->UpdatePriorities({key, key}, {5.0, wrong}), StatusIs(kInvalid, HasSubstr("priority")));
  }
  EXPECT_THAT(table->UpdatePriorities({key}, {1.0, 2.0}),
              StatusIs(kInvalid, HasSubstr("1 keys and 2 priorities")));
  EXPECT_EQ(table->Info().mass, 2);
  EXPECT_THAT(*table->UpdatePriorities({key, key + 1, 0, ~uint64_t{0}}, {7.0, 1.0, 1.0, 1.0}), 1u);
  EXPECT_EQ(table->Info().mass, 7);
  EXPECT_EQ(table->Info().missed_priority_updates, 3u);
}

TEST(Table, AKeyOfARemovedItemNeverMeansItsSuccessor) {
  const auto table = Make(TableOptions::Prioritized("replay", 1, 1, 1.0));
  TANDEM_ASSERT_OK(table->Insert({IdItem(1, 1.0)}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Sample sample, table->SampleItems({.batch = 1}));
  TANDEM_ASSERT_OK(table->Insert({IdItem(2, 1.0)}));
  EXPECT_EQ(*table->UpdatePriorities({sample.items[0].key}, {9.0}), 0u);
  EXPECT_EQ(table->Info().mass, 1);
}

TEST(Table, ItemsWithoutPriorityGetTheLargestSoFar) {
  const auto table = Make(TableOptions::Prioritized("replay", 10, 1, 1.0));
  TANDEM_ASSERT_OK(table->Insert({IdItem(1)}));
  EXPECT_EQ(table->Info().mass, 1);
  TANDEM_ASSERT_OK(table->Insert({IdItem(2, 5.0), IdItem(3)}));
  EXPECT_EQ(table->Info().mass, 11);
}

TEST(Table, BudgetsRemoveTheOldestAndCountEachChunkOnce) {
  TableOptions options = TableOptions::Uniform("replay", 1000, 1);
  options.max_bytes = 3 * 4 * sizeof(int64_t);  // three chunks
  const auto table = Make(options);
  const auto layout = testing::IdLayout();
  for (int64_t chunk = 0; chunk < 5; ++chunk) {
    const auto shared = testing::IdChunk(layout, 10 * chunk, 4);
    for (uint32_t offset = 0; offset < 3; ++offset) {
      TANDEM_ASSERT_OK(table->Insert({testing::ItemOf(layout, shared, offset, 2)}));
    }
    EXPECT_EQ(table->Info().bytes, std::min<uint64_t>(3, static_cast<uint64_t>(chunk) + 1) * 32);
  }
  EXPECT_EQ(table->Info().items, 9u);
  EXPECT_EQ(table->Info().removals.by_max_bytes, 6u);
  TANDEM_ASSERT_OK(table->SetLimits(options.limit, 2, options.max_bytes));
  EXPECT_EQ(table->Info().items, 2u);
  EXPECT_EQ(table->Info().bytes, 32u);
  EXPECT_EQ(table->Info().removals.by_max_items, 7u);
}

TEST(Table, TheLowestPriorityLeavesAFullTable) {
  TableOptions options = TableOptions::Uniform("replay", 3, 1);
  options.sampler.kind = SelectorKind::kFifo;
  options.remover.kind = SelectorKind::kLowest;
  const auto table = Make(options);
  TANDEM_ASSERT_OK(
      table->Insert({IdItem(1, 3.0), IdItem(2, 1.0), IdItem(3, 2.0), IdItem(4, 5.0), IdItem(5, 4.0)}));
  uint32_t next = 0;
  std::vector<int64_t> ids;
  for (const ItemStore::Item& item : table->Peek(10, &next)) ids.push_back(testing::IdOf(*item.trajectory));
  EXPECT_THAT(ids, ::testing::UnorderedElementsAre(1, 4, 5));
}

// Without the credit, the samples that the removed items can no longer give would keep inserts waiting for
// ever.
TEST(Table, RemovedItemsCreditTheirUnspentSamples) {
  TableOptions options = TableOptions::Queue("queue", 4, 2);
  const auto table = Make(options);
  TANDEM_ASSERT_OK(table->Insert(IdItems(1, 4)));
  EXPECT_THAT(table->Insert(IdItems(5, 1), "", kNow), StatusIs(kLate));
  TANDEM_ASSERT_OK(table->SetLimits(options.limit, 2, 0));
  EXPECT_EQ(table->Info().credited, 4u);
  EXPECT_EQ(table->Info().diff, 4);
  TANDEM_ASSERT_OK(table->Insert(IdItems(5, 1), "", kNow));
  EXPECT_EQ(table->Info().items, 2u);
  EXPECT_EQ(table->Info().credited, 6u);
  TANDEM_ASSERT_OK(table->SampleItems({.batch = 4}, "", kNow));
  EXPECT_EQ(table->Info().items, 0u);
  TANDEM_ASSERT_OK(table->Insert(IdItems(6, 2), "", kNow));
}

TEST(Table, ABatchThatCanNeverBeGivenIsRefused) {
  const auto table = Make(TableOptions::Queue("queue", 4));
  EXPECT_THAT(table->SampleItems({.batch = 5}),
              StatusIs(kInvalid, ::testing::AllOf(HasSubstr("a batch of 5 items may never be there"),
                                                  HasSubstr("[0, 4]"), HasSubstr("ask for at most 4"))));
  EXPECT_THAT(table->SampleItems({.batch = 0}), StatusIs(kInvalid));
  EXPECT_THAT(table->SampleItems({.batch = 2, .min_batch = 3}), StatusIs(kInvalid));
  EXPECT_THAT(table->SampleItems({.batch = 1 << 30}), StatusIs(kInvalid));
  TANDEM_ASSERT_OK(table->Insert(IdItems(1, 3)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Sample sample, table->SampleItems({.batch = 9, .min_batch = 2}));
  EXPECT_THAT(IdsOf(sample), ElementsAre(1, 2, 3));
}

TEST(Table, NewLimitsReleaseCallsAndEndThoseThatTheyMakeImpossible) {
  const auto table = Make(TableOptions::Queue("queue", 4));
  TANDEM_ASSERT_OK(table->Insert(IdItems(1, 4)));
  bool inserted = false;
  ASSERT_NE(
      table->StartInsert(IdItems(5, 2), "", {}, [&](absl::Status status, size_t) { inserted = status.ok(); }),
      0u);
  EXPECT_THAT(table->SetLimits({.samples_per_insert = 9, .min_diff = 0, .max_diff = 1}, 4, 0),
              StatusIs(kInvalid));
  EXPECT_FALSE(inserted);
  TANDEM_ASSERT_OK(table->SetLimits(RateLimit::Queue(10), 10, 0));
  EXPECT_TRUE(inserted);

  absl::Status sampled;
  ASSERT_NE(table->StartSample({.batch = 8}, "", [&](absl::StatusOr<Sample> s) { sampled = s.status(); }),
            0u);
  TANDEM_ASSERT_OK(table->SetLimits(RateLimit::Queue(6), 10, 0));
  EXPECT_THAT(sampled, StatusIs(kInvalid, HasSubstr("may never be there")));
}

TEST(Table, ResetEmptiesTheTableAndItsLimiter) {
  const auto table = Make(TableOptions::Queue("queue", 2));
  TANDEM_ASSERT_OK(table->Insert(IdItems(1, 2)));
  bool inserted = false;
  ASSERT_NE(
      table->StartInsert(IdItems(3, 1), "", {}, [&](absl::Status status, size_t) { inserted = status.ok(); }),
      0u);
  table->Reset();
  EXPECT_TRUE(inserted);
  const TableInfo info = table->Info();
  EXPECT_EQ(info.items, 1u);
  EXPECT_EQ(info.inserts, 1u);
  EXPECT_EQ(info.total_inserts, 3u);
  EXPECT_EQ(info.removals.by_reset, 2u);
}

TEST(Table, TheSameOperationsGiveTheSameSamples) {
  std::vector<uint64_t> keys[2];
  for (auto& run : keys) {
    TableOptions options = TableOptions::Prioritized("replay", 50, 1);
    options.seed = 42;
    const auto table = Make(options);
    for (int i = 0; i < 200; ++i) {
      TANDEM_ASSERT_OK(table->Insert({IdItem(i, i % 7)}));
      TANDEM_ASSERT_OK_AND_ASSIGN(const Sample sample, table->SampleItems({.batch = 3}));
      for (const SampledItem& item : sample.items) {
        run.push_back(item.key);
        TANDEM_ASSERT_OK(table->UpdatePriorities({item.key}, {item.probability}));
      }
    }
  }
  EXPECT_EQ(keys[0], keys[1]);
}

TEST(Table, ASnapshotBringsItemsCountsAndKeysBack) {
  TableOptions options = TableOptions::Prioritized("replay", 5, 1, 1.0);
  const auto table = Make(options);
  TANDEM_ASSERT_OK(table->Insert({IdItem(1, 1.0), IdItem(2, 2.0), IdItem(3, 3.0), IdItem(4, 4.0),
                                  IdItem(5, 5.0), IdItem(6, 6.0), IdItem(7, 7.0)}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Sample before, table->SampleItems({.batch = 4}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto restored, Table::Restore(table->Snapshot()));
  EXPECT_EQ(restored->Info().items, 5u);
  EXPECT_EQ(restored->Info().bytes, table->Info().bytes);
  EXPECT_EQ(restored->Info().mass, table->Info().mass);
  EXPECT_EQ(restored->Info().diff, table->Info().diff);
  EXPECT_EQ(restored->Info().columns, table->Info().columns);
  for (const SampledItem& item : before.items)
    EXPECT_EQ(*restored->UpdatePriorities({item.key}, {item.priority}), 1u);
  for (int i = 0; i < 100; ++i) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const Sample a, table->SampleItems({.batch = 1}));
    TANDEM_ASSERT_OK_AND_ASSIGN(const Sample b, restored->SampleItems({.batch = 1}));
    EXPECT_EQ(a.items[0].key, b.items[0].key);
  }

  TableSnapshot wrong = table->Snapshot();
  wrong.items[1].key = wrong.items[0].key;
  EXPECT_THAT(Table::Restore(wrong), StatusIs(kInvalid, HasSubstr("impossible")));
  wrong = table->Snapshot();
  std::swap(wrong.items[0], wrong.items[1]);
  EXPECT_THAT(Table::Restore(wrong), StatusIs(kInvalid, HasSubstr("not ordered")));
}

TEST(TableOptions, ThoseThatComeToAStandstillAreRefused) {
  EXPECT_THAT(CheckTableOptions(TableOptions::Uniform("replay", 10, 11)),
              StatusIs(kInvalid, HasSubstr("table 'replay': min_size is 11 and max_items 10")));
  EXPECT_THAT(CheckTableOptions(TableOptions::Uniform("", 10, 1)), StatusIs(kInvalid, HasSubstr("letters")));
  EXPECT_THAT(CheckTableOptions(TableOptions::Uniform("a b", 10, 1)),
              StatusIs(kInvalid, HasSubstr("letters")));
  EXPECT_THAT(CheckTableOptions(TableOptions::Uniform("a", 0, 1)),
              StatusIs(kInvalid, HasSubstr("max_items")));
  TableOptions twice = TableOptions::Uniform("a", 10, 1);
  twice.columns = {{.name = "x"}, {.name = "x"}};
  EXPECT_THAT(CheckTableOptions(twice), StatusIs(kInvalid, HasSubstr("two columns 'x'")));
  twice.columns = {{.name = "x", .shape = {1 << 20, 1 << 20, 1 << 20}}};
  EXPECT_THAT(CheckTableOptions(twice), StatusIs(kInvalid, HasSubstr("more than")));
}

// Each item leaves after about one of its ten samples.
TEST(Table, GoesOnWhenItemsLeaveLongBeforeTheirLastSample) {
  TableOptions options = TableOptions::Uniform("replay", 100, 10);
  options.max_times_sampled = 10;
  options.limit = RateLimit::Ratio(1, 10, 50);
  const auto table = Make(options);
  TANDEM_ASSERT_OK(table->Insert(IdItems(0, 10)));
  for (int64_t i = 0; i < 1000; ++i) {
    TANDEM_ASSERT_OK(table->Insert(IdItems(10 + i, 1), "", kNow)) << i;
    TANDEM_ASSERT_OK(table->SampleItems({.batch = 1}, "", kNow)) << i;
  }
  EXPECT_EQ(table->Info().credited, 0u);
}

TEST(Table, ABatchThatItsItemsCanNeverGiveIsRefused) {
  TableOptions options = TableOptions::Queue("queue", 10);
  options.limit.min_diff = -50;
  const auto table = Make(options);
  EXPECT_THAT(table->SampleItems({.batch = 32}, "", kNow), StatusIs(kInvalid, HasSubstr("at most 10")));
  options.limit = RateLimit::Ratio(4, 5, 40);
  EXPECT_THAT(CheckTableOptions(options), StatusIs(kInvalid, HasSubstr("raise max_times_sampled")));
}

TEST(Table, AnotherSamplesPerInsertHoldsForLaterInserts) {
  TableOptions options = TableOptions::Uniform("replay", 100, 1);
  options.limit = RateLimit::Ratio(4, 1, 40);
  const auto table = Make(options);
  for (int64_t i = 0; i < 10000; ++i) {
    TANDEM_ASSERT_OK(table->Insert(IdItems(i, 1)));
    TANDEM_ASSERT_OK(table->SampleItems({.batch = 4}));
  }
  for (const double wanted : {8.0, 2.0}) {
    RateLimit limit = options.limit;
    limit.samples_per_insert = wanted;
    TANDEM_ASSERT_OK(table->SetLimits(limit, 100, 0));
    TANDEM_EXPECT_OK(table->Insert(IdItems(0, 1), "", kNow));
    TANDEM_EXPECT_OK(table->SampleItems({.batch = 4}, "", kNow));
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto restored, Table::Restore(table->Snapshot()));
  EXPECT_EQ(restored->Info().diff, table->Info().diff);
}

TEST(Table, ItsCreationIsRememberedWhenItsLimitsChange) {
  const TableOptions options = TableOptions::Queue("queue", 2);
  const auto table = Make(options);
  TANDEM_ASSERT_OK(table->SetLimits(RateLimit::Queue(5), 5, 0));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto restored, Table::Restore(table->Snapshot()));
  EXPECT_EQ(restored->created_options(), options);
  EXPECT_EQ(restored->Info().options.max_items, 5u);
}

TEST(Table, ARestoredOneDrawsAndRemovesAsTheOtherGoesOn) {
  for (const SelectorKind kind :
       {SelectorKind::kFifo, SelectorKind::kLifo, SelectorKind::kUniform, SelectorKind::kPrioritized,
        SelectorKind::kLowest, SelectorKind::kHighest}) {
    TableOptions options = TableOptions::Uniform("replay", 20, 1);
    options.sampler.kind = kind;
    options.remover.kind = SelectorKind::kUniform;
    options.seed = 5;
    const auto table = Make(options);
    for (int64_t i = 0; i < 70; ++i) TANDEM_ASSERT_OK(table->Insert({IdItem(i, static_cast<double>(i % 5))}));
    // Holes, as a smaller budget leaves them.
    TANDEM_ASSERT_OK(table->SetLimits(options.limit, 12, 0));
    TANDEM_ASSERT_OK(table->SetLimits(options.limit, 20, 0));
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto restored, Table::Restore(table->Snapshot()));
    for (int64_t i = 100; i < 140; ++i) {
      const auto priority = static_cast<double>(i % 3);
      TANDEM_ASSERT_OK(table->Insert({IdItem(i, priority)}));
      TANDEM_ASSERT_OK(restored->Insert({IdItem(i, priority)}));
      TANDEM_ASSERT_OK_AND_ASSIGN(const Sample a, table->SampleItems({.batch = 3}));
      TANDEM_ASSERT_OK_AND_ASSIGN(const Sample b, restored->SampleItems({.batch = 3}));
      EXPECT_EQ(IdsOf(a), IdsOf(b)) << Name(kind) << ", " << i;
    }
  }
}

}  // namespace
}  // namespace tandem::replay
