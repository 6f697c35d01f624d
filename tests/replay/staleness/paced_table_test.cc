// SPDX-License-Identifier: Apache-2.0
// Tables with StalenessKind::kPace and kEvict, and items with a ttl.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/client/local_replay.h"
#include "replay/client/writer.h"
#include "replay/table/table.h"
#include "tests/replay/items.h"
#include "tests/testing/status_matchers.h"

namespace tandem::replay {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IdsOf;

constexpr auto kBadRequest = absl::StatusCode::kInvalidArgument;
constexpr auto kTooLate = absl::StatusCode::kDeadlineExceeded;
constexpr auto kNotFound = absl::StatusCode::kNotFound;
const absl::Time kAtOnce = absl::InfinitePast();  // a call with this deadline does not wait

std::vector<NewItem> Ticketed(int64_t id, const Ticket& ticket) {
  std::vector<NewItem> items;
  NewItem& item = items.emplace_back(testing::IdItem(id));
  item.ticket = ticket.id;
  auto trajectory = std::make_shared<Trajectory>(*item.trajectory);
  trajectory->min_version = trajectory->max_version = ticket.min_version;
  item.trajectory = std::move(trajectory);
  return items;
}

class PacedTable : public ::testing::Test {
 protected:
  void Make(uint32_t batch, uint32_t max_lag, SlowRollouts slow, uint32_t every = 1) {
    TableOptions options = TableOptions::PacedQueue("queue", batch, max_lag, every, slow);
    options.staleness.lease = absl::Seconds(10);
    options.staleness.max_rollout = absl::Seconds(60);
    auto table = Table::Create(options, &clock_);
    TANDEM_CHECK_MSG(table.ok(), table.status().ToString());
    table_ = *table;
  }
  std::vector<Ticket> Admit(uint32_t count, const std::string& actor = "actor/0") {
    auto tickets = table_->Admit({.actor = actor, .count = count}, kAtOnce);
    TANDEM_CHECK_MSG(tickets.ok(), tickets.status().ToString());
    return *tickets;
  }
  absl::Status Commit(int64_t version, uint64_t consumed) {
    return table_->Commit({.epoch = 1, .version = version, .items_consumed = consumed});
  }
  std::vector<int64_t> Sample(uint32_t batch) {
    const auto sample = table_->SampleItems({.batch = batch}, "learner", kAtOnce);
    return sample.ok() ? IdsOf(*sample) : std::vector<int64_t>();
  }

  SimulatedClock clock_;
  std::shared_ptr<Table> table_;
};

TEST_F(PacedTable, AdmitsRolloutsAsFarAsTheLearnerHasConsumed) {
  Make(/*batch=*/2, /*max_lag=*/1, SlowRollouts::kWait);
  EXPECT_THAT(table_->Admit({.actor = "actor/0"}, kAtOnce),
              StatusIs(kTooLate, HasSubstr("no version of the policy has been committed yet")));
  TANDEM_ASSERT_OK(Commit(5, 0));
  const std::vector<Ticket> tickets = Admit(4);  // (1 + 1) x 2
  EXPECT_EQ(tickets[0].min_version, 5);
  clock_.Advance(absl::Seconds(3));
  EXPECT_THAT(
      table_->Admit({.actor = "actor/1"}, kAtOnce),
      StatusIs(kTooLate,
               "table 'queue' admits no rollout until a later version than 5 is committed or items are "
               "dropped: 0 items sampled that no commit has counted as consumed, 0 waiting, and 4 rollouts "
               "running reach (max_lag 1 + 1) "
               "x batch 2 x every 1; the oldest rollout runs in actor/0, since 3 s, by version 5; nobody "
               "has sampled yet"));
  for (int64_t i = 0; i < 4; ++i) TANDEM_ASSERT_OK(table_->Insert(Ticketed(i, tickets[i])));
  EXPECT_THAT(Sample(2), ElementsAre(0, 1));
  EXPECT_FALSE(table_->Admit({}, kAtOnce).ok()) << "sampled, but not used in a version that was committed";
  TANDEM_ASSERT_OK(Commit(6, 2));
  EXPECT_EQ(Admit(2)[0].min_version, 6);
  EXPECT_FALSE(table_->Admit({}, kAtOnce).ok());
}

TEST_F(PacedTable, ItemsAreSampledInTheOrderOfTheirTickets) {
  Make(2, 1, SlowRollouts::kWait);
  TANDEM_ASSERT_OK(Commit(1, 0));
  const std::vector<Ticket> tickets = Admit(4);
  for (const int64_t i : {3, 0, 2, 1}) TANDEM_ASSERT_OK(table_->Insert(Ticketed(i, tickets[i])));
  EXPECT_THAT(Sample(4), ElementsAre(0, 1, 2, 3));
}

// A batch is limited by the items with the oldest tickets, however large a later one is.
TEST_F(PacedTable, ABatchCountsTheBytesOfTheItemsThatComeNext) {
  Make(2, 1, SlowRollouts::kWait);
  TANDEM_ASSERT_OK(Commit(1, 0));
  const std::vector<Ticket> tickets = Admit(4);
  const auto layout = testing::IdLayout();
  std::vector<NewItem> large = {testing::ItemOf(layout, testing::IdChunk(layout, 3, 20), 0, 20)};
  large[0].ticket = tickets[3].id;
  auto trajectory = std::make_shared<Trajectory>(*large[0].trajectory);
  trajectory->min_version = trajectory->max_version = tickets[3].min_version;
  large[0].trajectory = std::move(trajectory);
  TANDEM_ASSERT_OK(table_->Insert(std::move(large)));
  for (const int64_t i : {2, 0, 1}) TANDEM_ASSERT_OK(table_->Insert(Ticketed(i, tickets[i])));
  const auto sample = table_->SampleItems({.batch = 3, .max_bytes = 170}, "learner", kAtOnce);
  TANDEM_ASSERT_OK(sample);
  EXPECT_THAT(IdsOf(*sample), ElementsAre(0, 1, 2));
}

// One rollout stays out while the others go on.
TEST_F(PacedTable, SamplesWaitForASlowRolloutBeforeItIsTooOld) {
  Make(2, 1, SlowRollouts::kWait);
  TANDEM_ASSERT_OK(Commit(1, 0));
  const Ticket slow = Admit(1, "actor/slow")[0];
  int64_t id = 1, version = 1;
  for (const Ticket& ticket : Admit(3)) TANDEM_ASSERT_OK(table_->Insert(Ticketed(id++, ticket)));
  EXPECT_THAT(Sample(2), ElementsAre(1, 2)) << "the slow item may still come in the next batch";
  TANDEM_ASSERT_OK(Commit(++version, 2));
  for (const Ticket& ticket : Admit(2)) TANDEM_ASSERT_OK(table_->Insert(Ticketed(id++, ticket)));
  clock_.Advance(absl::Seconds(4));
  EXPECT_THAT(
      table_->SampleItems({.batch = 2}, "learner", kAtOnce),
      StatusIs(kTooLate, HasSubstr("samples wait for the rollout of actor/slow, since 4 s, by version 1, "
                                   "whose item would otherwise exceed max_lag 1 (slow: wait)")));
  EXPECT_THAT(table_->Info().why_no_sample, "") << "one item may be sampled";
  TANDEM_ASSERT_OK(table_->Insert(Ticketed(100, slow)));
  EXPECT_THAT(Sample(2), ElementsAre(100, 3));
  EXPECT_EQ(table_->Info().staleness.largest_lag, 1);
}

TEST_F(PacedTable, AnAbandonedRolloutEndsWithItsLease) {
  Make(1, 0, SlowRollouts::kWait);
  TANDEM_ASSERT_OK(Commit(1, 0));
  const Ticket lost = Admit(1, "actor/lost")[0];
  clock_.Advance(absl::Seconds(6));
  EXPECT_EQ(table_->Renew({lost.id}), 1u);
  clock_.Advance(absl::Seconds(6));
  EXPECT_FALSE(table_->Admit({}, kAtOnce).ok());
  clock_.Advance(absl::Seconds(5));
  const Ticket next = Admit(1)[0];
  EXPECT_EQ(table_->Renew({lost.id}), 0u);
  size_t inserted = 0;
  EXPECT_THAT(table_->Insert(Ticketed(1, lost), "", kAtOnce, &inserted),
              StatusIs(kNotFound, HasSubstr("roll out again with another ticket")));
  EXPECT_EQ(inserted, 1u) << "left out";
  TANDEM_ASSERT_OK(table_->Insert(Ticketed(2, next)));
  EXPECT_THAT(Sample(1), ElementsAre(2));
  EXPECT_EQ(table_->Info().staleness.tickets.expired, 1u);
  EXPECT_EQ(table_->Info().staleness.tickets.refused, 1u);
}

TEST_F(PacedTable, NoRenewalExtendsARolloutBeyondItsLimit) {
  Make(1, 0, SlowRollouts::kWait);
  TANDEM_ASSERT_OK(Commit(1, 0));
  const Ticket ticket = Admit(1)[0];
  for (int i = 0; i < 11; ++i) {
    clock_.Advance(absl::Seconds(5));
    EXPECT_EQ(table_->Renew({ticket.id}), 1u);
  }
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(Admit(1).size(), 1u);
}

TEST_F(PacedTable, ItemsThatAreTooOldAreDroppedOrTakenAsAskedFor) {
  for (const SlowRollouts slow : {SlowRollouts::kDrop, SlowRollouts::kTake}) {
    Make(1, 0, slow);
    TANDEM_ASSERT_OK(Commit(1, 0));
    const Ticket old = Admit(1)[0];
    TANDEM_ASSERT_OK(table_->Insert(Ticketed(1, old)));
    TANDEM_ASSERT_OK(Commit(2, 0));  // the learner has published without consuming anything
    const bool taken = slow == SlowRollouts::kTake;
    EXPECT_EQ(Sample(1).size(), taken ? 1u : 0u);
    EXPECT_EQ(table_->Info().removals.stale, taken ? 0u : 1u);
    EXPECT_EQ(table_->Info().staleness.largest_lag, taken ? 1 : 0);
    EXPECT_EQ(table_->Admit({}, kAtOnce).ok(), !taken) << "a dropped item gives its place back";
  }
}

TEST_F(PacedTable, ALearnerThatResumesDropsItemsBeyondTheBoundAndCountsThem) {
  Make(2, 0, SlowRollouts::kWait);
  TANDEM_ASSERT_OK(Commit(1, 0));
  const std::vector<Ticket> tickets = Admit(2);
  for (int64_t i = 0; i < 2; ++i) TANDEM_ASSERT_OK(table_->Insert(Ticketed(i, tickets[i])));
  EXPECT_THAT(Sample(1), ElementsAre(0));
  // It had sampled one item and dies; it resumes from an earlier checkpoint.
  TANDEM_ASSERT_OK(table_->Commit({.epoch = 2, .version = 10, .items_consumed = 0}));
  EXPECT_EQ(table_->Info().removals.stale, 1u) << "rolled out by a version before the one that it publishes";
  EXPECT_EQ(Admit(2)[0].min_version, 10);
}

TEST_F(PacedTable, ItemsNeedATicketAndStepsOfItsVersion) {
  Make(2, 1, SlowRollouts::kWait);
  TANDEM_ASSERT_OK(Commit(3, 0));
  const std::vector<Ticket> tickets = Admit(2);
  EXPECT_THAT(table_->Insert(testing::IdItems(1, 1)), StatusIs(kBadRequest, HasSubstr("has no ticket")));
  Ticket older = tickets[0];
  older.min_version = 2;
  EXPECT_THAT(
      table_->Insert(Ticketed(1, older)),
      StatusIs(kBadRequest, HasSubstr("steps of version 2, and its ticket requires version 3 or later")));
  // Items that are left out do not keep the others out.
  std::vector<NewItem> items = testing::IdItems(7, 1);
  items.push_back(Ticketed(8, tickets[1])[0]);
  size_t inserted = 0;
  EXPECT_THAT(table_->Insert(std::move(items), "", kAtOnce, &inserted),
              StatusIs(kBadRequest, HasSubstr("no ticket")));
  EXPECT_EQ(inserted, 2u);
  EXPECT_THAT(Sample(1), ElementsAre(8));
  EXPECT_THAT(table_->Admit({.count = 5}, kAtOnce), StatusIs(kBadRequest, HasSubstr("[1, 4]")));
  EXPECT_THAT(table_->SampleItems({.batch = 5}, "", kAtOnce), StatusIs(kBadRequest, HasSubstr("at most")));
}

TEST_F(PacedTable, AnActorThatStartsAgainGivesItsTicketsBack) {
  Make(2, 0, SlowRollouts::kWait);
  TANDEM_ASSERT_OK(Commit(1, 0));
  const AdmitRequest first = {.actor = "actor/0", .count = 2, .incarnation = 1, .sequence = 1};
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto tickets, table_->Admit(first, kAtOnce));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto repeated, table_->Admit(first, kAtOnce));
  EXPECT_EQ(repeated[1].id, tickets[1].id) << "a repeated request gets the same tickets";
  TANDEM_ASSERT_OK(table_->Admit({.actor = "actor/0", .count = 2, .incarnation = 2, .sequence = 1}, kAtOnce));
  EXPECT_THAT(table_->Insert(Ticketed(1, tickets[0]), "", kAtOnce), StatusIs(kNotFound));
  EXPECT_THAT(table_->Admit(first, kAtOnce),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has been replaced")));
}

TEST_F(PacedTable, ReturnedTicketsAreGrantedAgain) {
  Make(2, 0, SlowRollouts::kWait);
  TANDEM_ASSERT_OK(Commit(1, 0));
  const std::vector<Ticket> tickets = Admit(2);
  EXPECT_EQ(table_->ReturnTickets({tickets[0].id, tickets[1].id, 12345}), 2u);
  EXPECT_EQ(Admit(2).size(), 2u);
}

TEST_F(PacedTable, ACheckpointKeepsVersionsAndItemsAndEndsTickets) {
  Make(2, 1, SlowRollouts::kWait);
  TANDEM_ASSERT_OK(Commit(1, 0));
  const std::vector<Ticket> tickets = Admit(4);
  for (int64_t i = 0; i < 3; ++i) TANDEM_ASSERT_OK(table_->Insert(Ticketed(i, tickets[i])));
  EXPECT_THAT(Sample(1), ElementsAre(0));
  TANDEM_ASSERT_OK_AND_ASSIGN(table_, Table::Restore(table_->Snapshot(), &clock_));
  EXPECT_EQ(table_->Info().staleness.head->version, 1);
  EXPECT_THAT(table_->Insert(Ticketed(3, tickets[3]), "", kAtOnce), StatusIs(kNotFound));
  EXPECT_EQ(Admit(1).size(), 1u) << "the place of the lost rollout";
  EXPECT_FALSE(table_->Admit({}, kAtOnce).ok());
  EXPECT_THAT(Sample(2), ElementsAre(1, 2));
  TANDEM_ASSERT_OK(Commit(2, 2));
  EXPECT_EQ(Admit(2).size(), 2u);
}

TEST(PacedTables, OptionsThatWouldMakeAdmittedItemsWaitAreRefused) {
  const auto create = [](auto change) {
    TableOptions options = TableOptions::PacedQueue("queue", 8, 3);
    change(options);
    return Table::Create(options).status();
  };
  TANDEM_EXPECT_OK(create([](auto&) {}));
  EXPECT_THAT(
      create([](auto& o) { o.max_items = 31; }),
      StatusIs(kBadRequest, HasSubstr("admits up to (max_lag 3 + 1) x batch 8 x every 1 = 32 items, and "
                                      "max_items is 31")));
  EXPECT_THAT(create([](auto& o) { o.max_times_sampled = 2; }),
              StatusIs(kBadRequest, HasSubstr("needs a queue")));
  EXPECT_THAT(create([](auto& o) { o.sampler.kind = SelectorKind::kUniform; }),
              StatusIs(kBadRequest, HasSubstr("needs a queue")));
  const auto queue = *Table::Create(TableOptions::Queue("queue", 8));
  EXPECT_THAT(queue->Admit({}), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not 'pace'")));
}

TEST(PacedTables, AWaitingAdmissionIsGrantedWhenALeaseEnds) {
  TableOptions options = TableOptions::PacedQueue("queue", 1, 0);
  options.staleness.lease = absl::Milliseconds(200);
  const auto table = *Table::Create(options);
  TANDEM_ASSERT_OK(table->Commit({.epoch = 1, .version = 1}));
  TANDEM_ASSERT_OK(table->Admit({.actor = "lost"}));
  TANDEM_ASSERT_OK(table->Admit({.actor = "next"}, MonotonicNow() + absl::Seconds(30)));
}

// Three actors with 3 environments each, and a learner that uses 8 items: after two actors there is no place
// for all tickets of the third, and the learner waits for 2 items.
TEST_F(PacedTable, AnActorGetsTheTicketsThatFitOnceTheLearnerWaitsForIt) {
  Make(/*batch=*/8, /*max_lag=*/0, SlowRollouts::kWait);
  TANDEM_ASSERT_OK(Commit(1, 0));
  std::vector<Ticket> tickets = Admit(3, "actor/0");
  for (const Ticket& ticket : Admit(3, "actor/1")) tickets.push_back(ticket);
  std::vector<Ticket> third;
  const AdmitRequest request = {.actor = "actor/2", .count = 3, .incarnation = 1, .sequence = 1};
  const uint64_t waiting = table_->StartAdmit(request, [&](absl::StatusOr<std::vector<Ticket>> granted) {
    TANDEM_EXPECT_OK(granted);
    if (granted.ok()) third = *granted;
  });
  EXPECT_NE(waiting, 0u);
  std::vector<int64_t> batch;
  table_->StartSample({.batch = 8}, "learner", [&](absl::StatusOr<replay::Sample> sample) {
    TANDEM_EXPECT_OK(sample);
    if (sample.ok()) batch = IdsOf(*sample);
  });
  for (int64_t i = 0; i < 5; ++i) TANDEM_ASSERT_OK(table_->Insert(Ticketed(i, tickets[i])));
  EXPECT_TRUE(third.empty()) << "a rollout runs, which may be given back";
  TANDEM_ASSERT_OK(table_->Insert(Ticketed(5, tickets[5])));
  ASSERT_EQ(third.size(), 2u) << "2 of 3, or nobody could go on";
  EXPECT_EQ(table_->Info().staleness.running, 2u);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto repeated, table_->Admit(request, kAtOnce));
  EXPECT_EQ(repeated.size(), 2u);
  for (int64_t i = 0; i < 2; ++i) TANDEM_ASSERT_OK(table_->Insert(Ticketed(6 + i, third[i])));
  EXPECT_THAT(batch, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  TANDEM_ASSERT_OK(Commit(2, 8));
  EXPECT_EQ(Admit(3, "actor/2").size(), 3u);
}

TEST(PacedTables, AWriterUsesTheTicketsThatItHoldsAndRenewsThem) {
  LocalReplay replay;
  TableOptions options = TableOptions::PacedQueue("queue", 1, 1);
  options.staleness.lease = absl::Milliseconds(600);
  options.staleness.max_rollout = absl::Minutes(10);
  TANDEM_ASSERT_OK(replay.CreateTable(options));
  TANDEM_ASSERT_OK(replay.Commit("queue", {.epoch = 1, .version = 4}));
  auto writer = Writer::Create(&replay, {{.name = "id", .dtype = DType::kI64}}, {.chunk_steps = 1000});
  TANDEM_ASSERT_OK(writer);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto tickets, replay.Admit("queue", {.actor = "actor/0"}));
  (*writer)->Hold("queue", tickets[0]);
  // Append renews the lease, which would end meanwhile otherwise. A busy machine may end it all the same, if
  // this thread does not run for 600 ms; then the rollout is repeated.
  const absl::Time end = MonotonicNow() + absl::Milliseconds(1200);
  const std::vector<int64_t> value = {1};
  while (MonotonicNow() < end) TANDEM_ASSERT_OK((*writer)->Append({value}, {.policy_version = 4}));
  TANDEM_ASSERT_OK((*writer)->CreateItem("queue", std::nullopt, (*writer)->Last(1)));
  const absl::Status flushed = (*writer)->Flush();
  EXPECT_TRUE(flushed.ok() || absl::IsNotFound(flushed)) << flushed;
  EXPECT_THAT((*writer)->CreateItem("queue", std::nullopt, (*writer)->Last(1)),
              StatusIs(kBadRequest, HasSubstr("has no ticket")))
      << "it was used";
  EXPECT_EQ((*writer)->pending_items(), 0u);
}

TEST(EvictingTable, ACommitRemovesItemsOfTooOldVersions) {
  TableOptions options = TableOptions::Uniform("replay", 100, 1);
  options.staleness = {.kind = StalenessKind::kEvict, .max_lag = 2};
  const auto table = *Table::Create(options);
  for (int64_t version = 1; version <= 6; ++version) {
    TANDEM_ASSERT_OK(table->Insert(Ticketed(version, {.min_version = version})));
  }
  TANDEM_ASSERT_OK(table->Commit({.epoch = 1, .version = 6}));
  EXPECT_EQ(table->Info().items, 3u);
  EXPECT_EQ(table->Info().removals.stale, 3u);
  for (int i = 0; i < 20; ++i) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const Sample sample, table->SampleItems({.batch = 1}));
    EXPECT_GE(IdsOf(sample)[0], 4);
    EXPECT_EQ(sample.committed_version, 6);
  }
}

TEST(TimeToLive, ItemsLeaveAtTheirAge) {
  SimulatedClock clock;
  TableOptions options = TableOptions::Queue("queue", 2);
  options.ttl = absl::Seconds(10);
  const auto table = *Table::Create(options, &clock);
  TANDEM_ASSERT_OK(table->Insert(testing::IdItems(1, 1)));
  clock.Advance(absl::Seconds(6));
  TANDEM_ASSERT_OK(table->Insert(testing::IdItems(2, 1)));
  EXPECT_FALSE(table->Insert(testing::IdItems(3, 1), "", kAtOnce).ok()) << "the queue is full";
  clock.Advance(absl::Seconds(5));
  TANDEM_ASSERT_OK(table->Insert(testing::IdItems(4, 1), "", kAtOnce));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Sample sample, table->SampleItems({.batch = 2}, "", kAtOnce));
  EXPECT_THAT(IdsOf(sample), ElementsAre(2, 4));
  EXPECT_EQ(table->Info().removals.by_ttl, 1u);
  options.ttl = -absl::Seconds(1);
  EXPECT_THAT(Table::Create(options), StatusIs(kBadRequest, HasSubstr("ttl")));
}

TEST_F(PacedTable, AnItemWhoseTimeToLiveIsOverWhenItIsTooOldIsRemovedOnce) {
  TableOptions options = TableOptions::PacedQueue("queue", 1, 0, 1, SlowRollouts::kDrop);
  options.ttl = absl::Seconds(10);
  TANDEM_ASSERT_OK_AND_ASSIGN(table_, Table::Create(options, &clock_));
  TANDEM_ASSERT_OK(Commit(1, 0));
  TANDEM_ASSERT_OK(table_->Insert(Ticketed(1, Admit(1)[0])));
  clock_.Advance(absl::Seconds(11));
  TANDEM_ASSERT_OK(Commit(2, 0));
  const TableInfo info = table_->Info();
  EXPECT_EQ(info.items, 0u);
  EXPECT_EQ(info.removals.by_ttl, 1u);
  EXPECT_EQ(info.removals.stale, 0u);
  TANDEM_ASSERT_OK(table_->Insert(Ticketed(2, Admit(1)[0])));
  EXPECT_THAT(Sample(1), ElementsAre(2));
}

// The first call that waits keeps the second one from an item whose time to live then ends.
TEST(TimeToLive, AnItemWhoseTimeIsOverIsNotSampledByACallThatHasWaited) {
  for (TableOptions options : {TableOptions::Queue("queue", 8), TableOptions::Uniform("replay", 8, 1)}) {
    SimulatedClock clock;
    options.limit = RateLimit::Queue(8, 1);
    options.max_times_sampled = 1;
    options.ttl = absl::Seconds(10);
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto table, Table::Create(options, &clock));
    const uint64_t first = table->StartSample(
        {.batch = 5}, "", [](absl::StatusOr<Sample> sample) { EXPECT_THAT(sample, StatusIs(kTooLate)); });
    std::vector<int64_t> drawn;
    table->StartSample({.batch = 1}, "", [&](absl::StatusOr<Sample> sample) {
      TANDEM_EXPECT_OK(sample);
      if (sample.ok()) drawn = IdsOf(*sample);
    });
    TANDEM_ASSERT_OK(table->Insert(testing::IdItems(1, 1)));
    clock.Advance(absl::Seconds(11));
    table->Expire(first);
    EXPECT_TRUE(drawn.empty());
    EXPECT_EQ(table->Info().removals.by_ttl, 1u);
    TANDEM_ASSERT_OK(table->Insert(testing::IdItems(2, 1)));
    EXPECT_THAT(drawn, ElementsAre(2));
  }
}

}  // namespace
}  // namespace tandem::replay
