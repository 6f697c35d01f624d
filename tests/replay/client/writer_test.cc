// SPDX-License-Identifier: Apache-2.0
#include "replay/client/writer.h"

#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/client/local_replay.h"
#include "tests/testing/status_matchers.h"

namespace tandem::replay {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kRefused = absl::StatusCode::kInvalidArgument;

// A writer of steps (x, [x, -x]), and tables "replay" and "queue".
class WriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TableOptions all = TableOptions::Uniform("replay", 1000, 1);
    all.sampler.kind = SelectorKind::kFifo;
    all.max_times_sampled = 1;
    TANDEM_ASSERT_OK(replay_.CreateTable(all));
    TANDEM_ASSERT_OK(replay_.CreateTable(TableOptions::Queue("queue", 2)));
  }
  std::unique_ptr<Writer> Make(WriterOptions options = {.chunk_steps = 4}) {
    auto writer = Writer::Create(
        &replay_, {{.name = "x", .dtype = DType::kI32}, {.name = "pair", .shape = {2}}}, options);
    TANDEM_CHECK_MSG(writer.ok(), writer.status().ToString());
    return *std::move(writer);
  }
  static absl::Status Append(Writer& writer, int32_t x, const StepInfo& info = {},
                             absl::Time deadline = absl::InfiniteFuture()) {
    const std::vector<int32_t> value = {x};
    const std::vector<float> pair = {static_cast<float>(x), static_cast<float>(-x)};
    return writer.Append({value, pair}, info, deadline);
  }
  // Returns the values of x of the next item of table "replay".
  std::vector<int32_t> NextX(absl::string_view column = "x") {
    auto batch = replay_.Sample("replay", {.batch = 1}, absl::InfinitePast());
    if (!batch.ok()) return {};
    const auto values = batch->Find(column)->values<int32_t>();
    return {values.begin(), values.end()};
  }

  LocalReplay replay_;
};

TEST_F(WriterTest, WindowsOfTheLastStepsBecomeItemsWhenTheirChunkIsComplete) {
  const auto writer = Make();
  for (int32_t x = 0; x < 6; ++x) {
    TANDEM_ASSERT_OK(Append(*writer, x));
    if (x < 2) continue;
    TANDEM_ASSERT_OK(writer->CreateItem("replay", std::nullopt, writer->Last(3)));
  }
  EXPECT_EQ(replay_.Info("replay")->items, 2u);
  EXPECT_EQ(writer->pending_items(), 2u);
  TANDEM_ASSERT_OK(writer->Flush());
  EXPECT_EQ(writer->pending_items(), 0u);
  EXPECT_THAT(NextX(), ElementsAre(0, 1, 2));
  EXPECT_THAT(NextX(), ElementsAre(1, 2, 3));
  EXPECT_THAT(NextX(), ElementsAre(2, 3, 4));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch batch, replay_.Sample("replay", {.batch = 1}));
  EXPECT_THAT(batch.Find("pair")->values<float>(), ElementsAre(3, -3, 4, -4, 5, -5));
}

TEST_F(WriterTest, OverlappingItemsShareTheirChunks) {
  const auto writer = Make({.chunk_steps = 10});
  for (int32_t x = 0; x < 100; ++x) {
    TANDEM_ASSERT_OK(Append(*writer, x));
    if (x < 9) continue;
    TANDEM_ASSERT_OK(writer->CreateItem("replay", std::nullopt, writer->Last(10)));
  }
  const TableInfo info = *replay_.Info("replay");
  EXPECT_EQ(info.items, 91u);
  EXPECT_EQ(info.bytes, 100u * (4 + 8 + 1 + 8)) << "two columns, is_first and policy_version";
}

TEST_F(WriterTest, ColumnsOfAnItemMayHaveDifferentWindows) {
  const auto writer = Make();
  for (int32_t x = 0; x < 8; ++x) TANDEM_ASSERT_OK(Append(*writer, x, {.policy_version = 10 + x}));
  TANDEM_ASSERT_OK(writer->CreateItem("replay", 1.0,
                                      {{"state", "x", writer->Last(1, 3)},
                                       {"next_state", "x", writer->Last(1)},
                                       {"rewards", "pair", writer->Last(3, 1)},
                                       {"first", kIsFirstColumn, writer->Last(8)},
                                       {"version", kPolicyVersionColumn, writer->Last(1)}}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch batch, replay_.Sample("replay", {.batch = 1}));
  EXPECT_THAT(batch.Find("state")->values<int32_t>(), ElementsAre(4));
  EXPECT_THAT(batch.Find("next_state")->values<int32_t>(), ElementsAre(7));
  EXPECT_THAT(batch.Find("rewards")->values<float>(), ElementsAre(4, -4, 5, -5, 6, -6));
  EXPECT_THAT(batch.Find("first")->values<uint8_t>(), ElementsAre(1, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(batch.Find("version")->values<int64_t>(), ElementsAre(17));
  EXPECT_EQ(batch.min_versions[0], 10);
  EXPECT_EQ(batch.max_versions[0], 17);
}

TEST_F(WriterTest, WindowsStayInTheCurrentEpisodeUnlessAsked) {
  const auto writer = Make({.chunk_steps = 1});
  for (int32_t x = 0; x < 6; ++x) {
    TANDEM_ASSERT_OK(Append(*writer, x, {.is_first = x == 3}));
    const uint32_t in_episode = x < 3 ? x + 1 : x - 2;
    EXPECT_EQ(writer->Last(in_episode).steps, in_episode);
    EXPECT_EQ(writer->Last(in_episode + 1).steps, 0u) << "after step " << x;
    EXPECT_EQ(writer->Last(1, in_episode).steps, 0u) << "a transition would have steps of two episodes";
  }
  EXPECT_EQ(writer->Last(4, 0, /*across_episodes=*/true).steps, 4u);
  EXPECT_EQ(writer->Last(7, 0, /*across_episodes=*/true).steps, 0u);
  TANDEM_ASSERT_OK(
      writer->CreateItem("replay", 1.0, {{"x", "x", writer->Last(4, 1, /*across_episodes=*/true)}}));
  EXPECT_THAT(NextX("x"), ElementsAre(1, 2, 3, 4));
}

TEST_F(WriterTest, StacksRepeatTheFirstStepOfTheEpisode) {
  const auto writer = Make({.chunk_steps = 1});
  for (int32_t x = 0; x < 3; ++x) TANDEM_ASSERT_OK(Append(*writer, x));
  for (int32_t x = 100; x < 105; ++x) {
    TANDEM_ASSERT_OK(Append(*writer, x, {.is_first = x == 100}));
    TANDEM_ASSERT_OK(writer->CreateItem("replay", 1.0, {{"frames", "x", writer->Stack(4)}}));
  }
  EXPECT_EQ(writer->episode_steps(), 5u);
  EXPECT_THAT(NextX("frames"), ElementsAre(100, 100, 100, 100));
  EXPECT_THAT(NextX("frames"), ElementsAre(100, 100, 100, 101));
  EXPECT_THAT(NextX("frames"), ElementsAre(100, 100, 101, 102));
  EXPECT_THAT(NextX("frames"), ElementsAre(100, 101, 102, 103));
  EXPECT_THAT(NextX("frames"), ElementsAre(101, 102, 103, 104));
  // The stack of an earlier step belongs to that step's episode.
  TANDEM_ASSERT_OK(writer->CreateItem("replay", 1.0, {{"frames", "x", writer->Stack(4, 6)}}));
  EXPECT_THAT(NextX("frames"), ElementsAre(0, 0, 0, 1));
}

TEST_F(WriterTest, WindowsOutOfReachAreRefused) {
  const auto writer = Make({.chunk_steps = 2, .history_steps = 4});
  EXPECT_EQ(writer->Last(1).steps, 0u);
  EXPECT_THAT(writer->CreateItem("replay", 1.0, writer->Last(1)), StatusIs(kRefused, HasSubstr("0 steps")));
  TANDEM_ASSERT_OK(Append(*writer, 0));
  const Window first = writer->Last(1);
  for (int32_t x = 1; x < 5; ++x) TANDEM_ASSERT_OK(Append(*writer, x));
  EXPECT_EQ(writer->Last(5).steps, 0u);
  EXPECT_EQ(writer->Stack(5).steps, 0u);
  EXPECT_EQ(writer->Last(4).steps, 4u);
  EXPECT_THAT(writer->CreateItem("replay", 1.0, first),
              StatusIs(kRefused, HasSubstr("in reach are the steps [1, 5) (history_steps 4)")));
  EXPECT_THAT(writer->CreateItem("replay", 1.0, Window{.first = 4, .steps = 2}), StatusIs(kRefused));
  EXPECT_THAT(writer->CreateItem("replay", std::nan(""), writer->Last(1)),
              StatusIs(kRefused, HasSubstr("priority nan")));
  EXPECT_THAT(writer->CreateItem("replay", 1.0, {{"a", "nowhere", writer->Last(1)}}),
              StatusIs(kRefused, HasSubstr("'nowhere', which is none of [x i32, pair f32[2]")));
  EXPECT_THAT(writer->CreateItem("replay", 1.0, {{"a", "x", writer->Last(1)}, {"a", "x", writer->Last(1)}}),
              StatusIs(kRefused, HasSubstr("two columns 'a'")));
  EXPECT_EQ(writer->pending_items(), 0u);
}

TEST_F(WriterTest, WrongValuesAreRefusedAndAppendNothing) {
  const auto writer = Make();
  const std::vector<int32_t> x = {1};
  const std::vector<float> pair = {1, 2}, triple = {1, 2, 3};
  EXPECT_THAT(writer->Append({x}), StatusIs(kRefused, HasSubstr("a step of 1 value; there are 2 columns")));
  EXPECT_THAT(writer->Append({x, triple}),
              StatusIs(kRefused, HasSubstr("column pair f32[2] takes 2 values, not 3 of f32")));
  EXPECT_THAT(writer->Append({pair, pair}), StatusIs(kRefused, HasSubstr("column x i32")));
  EXPECT_EQ(writer->Last(1).steps, 0u);
}

TEST_F(WriterTest, ColumnsWithReservedNamesAreRefused) {
  EXPECT_THAT(Writer::Create(&replay_, {{.name = kIsFirstColumn}}),
              StatusIs(kRefused, HasSubstr("adds column")));
  EXPECT_THAT(Writer::Create(&replay_, {{.name = "a"}, {.name = "a"}}),
              StatusIs(kRefused, HasSubstr("two columns")));
  EXPECT_THAT(Writer::Create(&replay_, {{.name = "a"}}, {.chunk_steps = 0}),
              StatusIs(kRefused, HasSubstr("chunk_steps")));
}

TEST_F(WriterTest, ItemsOfABlockedTableWaitAndThoseOfOthersDoNot) {
  const auto writer = Make({.chunk_steps = 1, .max_pending_items = 4});
  for (int32_t x = 0; x < 4; ++x) {
    // An item of "queue" that waits is tried again by each call; the step is appended in any case.
    EXPECT_EQ(absl::IsDeadlineExceeded(Append(*writer, x, {}, absl::InfinitePast())), x >= 3);
    const absl::Status queued = writer->CreateItem("queue", 1.0, writer->Last(1), absl::InfinitePast());
    EXPECT_EQ(absl::IsDeadlineExceeded(queued), x >= 2) << queued;
    const absl::Status both = writer->CreateItem("replay", 1.0, writer->Last(1), absl::InfinitePast());
    EXPECT_EQ(absl::IsDeadlineExceeded(both), x >= 2) << both;
    EXPECT_EQ(replay_.Info("replay")->items, static_cast<uint64_t>(x) + 1);
  }
  EXPECT_EQ(writer->pending_items(), 2u);
  for (int i = 0; i < 2; ++i) (void)writer->CreateItem("queue", 1.0, writer->Last(1), absl::InfinitePast());
  EXPECT_THAT(writer->CreateItem("queue", 1.0, writer->Last(1), absl::InfinitePast()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       ::testing::AllOf(HasSubstr("4 items wait"), HasSubstr("reaches max_diff 2"))));
  std::thread sampler([&] {
    for (int32_t x = 0; x < 4; ++x) {
      const auto batch = replay_.Sample("queue", {.batch = 1});
      ASSERT_TRUE(batch.ok());
      EXPECT_EQ(batch->Find("x")->values<int32_t>()[0], x);
    }
  });
  TANDEM_EXPECT_OK(writer->Flush());
  sampler.join();
  EXPECT_EQ(writer->pending_items(), 0u);
}

TEST_F(WriterTest, OnRequestNothingIsDeliveredBeforeItIsAskedFor) {
  const auto writer = Make({.chunk_steps = 1, .deliver_on_request = true});
  EXPECT_FALSE(writer->delivery_due());
  // These would block: the queue holds two items.
  for (int32_t x = 0; x < 3; ++x) {
    TANDEM_ASSERT_OK(Append(*writer, x));
    TANDEM_ASSERT_OK(writer->CreateItem("queue", std::nullopt, writer->Last(1)));
  }
  EXPECT_EQ(replay_.Info("queue")->items, 0u);
  EXPECT_TRUE(writer->delivery_due());
  EXPECT_THAT(writer->Deliver(absl::InfinitePast()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(replay_.Info("queue")->items, 2u);
  EXPECT_EQ(writer->pending_items(), 1u);
  EXPECT_TRUE(writer->delivery_due());
  TANDEM_ASSERT_OK(replay_.Sample("queue", {.batch = 1}));
  TANDEM_ASSERT_OK(writer->Deliver());
  EXPECT_EQ(writer->pending_items(), 0u);
  EXPECT_FALSE(writer->delivery_due());
}

TEST_F(WriterTest, OnRequestTicketsAreRenewedByDeliver) {
  TableOptions paced = TableOptions::PacedQueue("paced", /*batch=*/1, /*max_lag=*/1);
  paced.staleness.lease = absl::Seconds(600);
  TANDEM_ASSERT_OK(replay_.CreateTable(paced));
  TANDEM_ASSERT_OK(replay_.Commit("paced", {.epoch = 1, .version = 1}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<Ticket> tickets,
                              replay_.Admit("paced", {.actor = "actor/0"}));
  const auto writer = Make({.chunk_steps = 4, .deliver_on_request = true});
  Ticket ticket = tickets[0];
  writer->Hold("paced", ticket);
  TANDEM_ASSERT_OK(Append(*writer, 1, {.policy_version = 1}));
  EXPECT_FALSE(writer->delivery_due());  // its lease has not run for a third
  ticket.lease = absl::ZeroDuration();
  writer->Hold("paced", ticket);
  EXPECT_TRUE(writer->delivery_due());
  TANDEM_ASSERT_OK(writer->Deliver());
  TANDEM_ASSERT_OK(writer->CreateItem("paced", std::nullopt, writer->Last(1)));
  TANDEM_ASSERT_OK(writer->Flush());
  EXPECT_EQ(replay_.Info("paced")->items, 1u);
}

TEST_F(WriterTest, ItemsThatATableRefusesAreDropped) {
  const auto writer = Make({.chunk_steps = 1});
  TANDEM_ASSERT_OK(Append(*writer, 1));
  EXPECT_THAT(writer->CreateItem("nowhere", 1.0, writer->Last(1)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("there are: queue, replay")));
  EXPECT_EQ(writer->pending_items(), 0u);
  TANDEM_EXPECT_OK(writer->CreateItem("replay", 1.0, writer->Last(1)));
}

TEST_F(WriterTest, ATableExistsOnceWithOneSetOfOptions) {
  TANDEM_EXPECT_OK(replay_.CreateTable(TableOptions::Queue("queue", 2)));
  EXPECT_THAT(replay_.CreateTable(TableOptions::Queue("queue", 3)),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(replay_.Sample("none", {.batch = 1}), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(WriterTest, AnItemThatIsRefusedTakesNoOtherWithIt) {
  TableOptions options = TableOptions::Queue("small", 1);
  options.max_bytes = 100;
  TANDEM_ASSERT_OK(replay_.CreateTable(options));
  const auto writer = Make({.chunk_steps = 1, .history_steps = 64});
  const absl::Time at_once = absl::InfinitePast();
  for (int32_t x = 0; x < 50; ++x) TANDEM_ASSERT_OK(Append(*writer, x));
  TANDEM_ASSERT_OK(writer->CreateItem("small", 1.0, writer->Last(1, 49), at_once));
  // The table is full: these wait together.
  (void)writer->CreateItem("small", 1.0, writer->Last(1, 48), at_once);
  (void)writer->CreateItem("small", 1.0, writer->Last(50), at_once);  // more than max_bytes
  (void)writer->CreateItem("small", 1.0, writer->Last(1, 47), at_once);
  std::vector<int32_t> seen;
  for (int i = 0; i < 3; ++i) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const Batch batch, replay_.Sample("small", {.batch = 1}));
    seen.push_back(batch.Find("x")->values<int32_t>()[0]);
    (void)writer->Flush(at_once);
  }
  EXPECT_THAT(seen, ::testing::ElementsAre(0, 1, 2));
  EXPECT_EQ(writer->dropped_items(), 1u);
  EXPECT_EQ(writer->pending_items(), 0u);
}

TEST_F(WriterTest, CreatingATableAgainIsFineAfterItsLimitsHaveChanged) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto table, replay_.Find("queue"));
  TANDEM_ASSERT_OK(table->SetLimits(RateLimit::Queue(7), 7, 0));
  TANDEM_EXPECT_OK(replay_.CreateTable(TableOptions::Queue("queue", 2)));
}

}  // namespace
}  // namespace tandem::replay
