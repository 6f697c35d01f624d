// SPDX-License-Identifier: Apache-2.0
#include "replay/client/sharded_sampler.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/timed_wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/client/local_replay.h"
#include "tests/replay/items.h"
#include "tests/testing/status_matchers.h"

namespace tandem::replay {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kWrong = absl::StatusCode::kInvalidArgument;

// Some shards, each with a table "replay".
class Shards {
 public:
  explicit Shards(size_t shards, TableOptions options = TableOptions::Prioritized("replay", 1000, 1, 1.0)) {
    for (size_t i = 0; i < shards; ++i) {
      options.seed = i;
      replays_.push_back(std::make_unique<LocalReplay>());
      TANDEM_CHECK(replays_[i]->CreateTable(options).ok());
    }
  }
  Table& table(size_t shard) { return **replays_[shard]->Find("replay"); }
  void Insert(size_t shard, int64_t id, double priority) {
    TANDEM_ASSERT_OK(table(shard).Insert({testing::IdItem(id, priority)}));
  }
  std::vector<Replay*> all() const {
    std::vector<Replay*> shards;
    for (const auto& replay : replays_) shards.push_back(replay.get());
    return shards;
  }
  std::unique_ptr<ShardedSampler> Sampler(uint64_t seed = 1) {
    auto sampler = ShardedSampler::Create(all(), {.table = "replay", .name = "learner", .seed = seed});
    TANDEM_CHECK_MSG(sampler.ok(), sampler.status().ToString());
    return *std::move(sampler);
  }

 private:
  std::vector<std::unique_ptr<LocalReplay>> replays_;
};

std::vector<int64_t> IdsOfBatch(const Batch& batch) {
  const auto values = batch.Find("id")->values<int64_t>();
  return {values.begin(), values.end()};
}

TEST(ShardedSampler, DrawsEachItemWithItsPartOfTheMassesOfAllShards) {
  Shards shards(3);
  const std::vector<double> priorities = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (int64_t id = 0; id < 9; ++id) {
    shards.Insert(static_cast<size_t>(id % 3), id, priorities[static_cast<size_t>(id)]);
  }
  const auto sampler = shards.Sampler();
  std::map<int64_t, int> drawn;
  constexpr int kBatches = 2000;
  for (int i = 0; i < kBatches; ++i) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const ShardedBatch sample, sampler->Sample(16));
    const std::vector<int64_t> ids = IdsOfBatch(sample.batch);
    ASSERT_EQ(ids.size(), 16u);
    EXPECT_EQ(sample.batch.table_items, 9u);
    EXPECT_DOUBLE_EQ(sample.batch.mass, 45);
    for (size_t n = 0; n < ids.size(); ++n) {
      ++drawn[ids[n]];
      EXPECT_EQ(sample.shards[n], static_cast<uint32_t>(ids[n] % 3));
      ASSERT_NEAR(sample.batch.probabilities[n], priorities[static_cast<size_t>(ids[n])] / 45, 1e-12);
    }
  }
  double chi_square = 0;
  for (int64_t id = 0; id < 9; ++id) {
    const double expected = kBatches * 16 * priorities[static_cast<size_t>(id)] / 45;
    chi_square += std::pow(drawn[id] - expected, 2) / expected;
  }
  EXPECT_LT(chi_square, 26.1) << "8 degrees of freedom, one in a thousand";
}

// Priorities change and items come between two samples, so that the sampler's masses are always old. The mean
// of f * weight must be that of f over the items of the moment. Without the part of the masses that were seen
// it is not, which shows that the test can fail.
TEST(ShardedSampler, ImportanceWeightsAreUnbiasedThoughTheMassesAreOld) {
  Shards shards(3);
  int64_t items = 0;
  for (; items < 30; ++items) shards.Insert(static_cast<size_t>(items % 3), items, 1 + items % 7);
  const auto sampler = shards.Sampler();
  const auto f = [](int64_t id) {
    return 1.0 + static_cast<double>(id % 3) + std::sin(static_cast<double>(id));
  };
  CounterRandom random(7, 0);
  constexpr int kSamples = 20000;
  double sum = 0, squares = 0, naive = 0;
  for (int i = 0; i < kSamples; ++i) {
    // The mass of one shard grows or shrinks by a large factor.
    const size_t shard = static_cast<size_t>(random.Below(3));
    const double scale = std::pow(4.0, 2 * random.UniformDouble() - 1);
    std::vector<uint64_t> keys;
    std::vector<double> priorities;
    uint32_t next = 0;
    for (const ItemStore::Item& item : shards.table(shard).Peek(1000, &next)) {
      keys.push_back(item.key);
      priorities.push_back(scale * (1 + static_cast<double>(random.Below(7))));
    }
    TANDEM_ASSERT_OK(shards.table(shard).UpdatePriorities(keys, priorities));
    if (i % 500 == 0) shards.Insert(static_cast<size_t>(random.Below(3)), items++, 3);
    double truth = 0;
    std::vector<double> masses;
    for (int64_t id = 0; id < items; ++id) truth += f(id) / static_cast<double>(items);
    for (size_t s = 0; s < 3; ++s) masses.push_back(shards.table(s).Info().mass);
    const double mass = masses[0] + masses[1] + masses[2];

    TANDEM_ASSERT_OK_AND_ASSIGN(const ShardedBatch sample, sampler->Sample(8));
    // Shards that were not chosen may have other items than the sampler knows.
    const std::vector<double> weights =
        ImportanceWeights(sample.batch.probabilities, static_cast<uint64_t>(items), 1, WeightScale::kNone);
    const std::vector<int64_t> ids = IdsOfBatch(sample.batch);
    double estimate = 0, wrong = 0;
    for (size_t n = 0; n < ids.size(); ++n) {
      estimate += f(ids[n]) * weights[n] / 8;
      const double probability = sample.batch.priorities[n] / mass;
      wrong += f(ids[n]) / (static_cast<double>(items) * probability) / 8;
    }
    sum += estimate - truth;
    squares += (estimate - truth) * (estimate - truth);
    naive += wrong - truth;
  }
  const double error = std::sqrt(squares) / kSamples;  // of the mean
  EXPECT_LT(std::abs(sum / kSamples), 4 * error);
  EXPECT_GT(std::abs(naive / kSamples), 8 * error);
}

TEST(ShardedSampler, ChangesThePrioritiesOfEachShardsItems) {
  Shards shards(2);
  for (int64_t id = 0; id < 10; ++id) shards.Insert(static_cast<size_t>(id % 2), id, 1);
  const auto sampler = shards.Sampler();
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardedBatch sample, sampler->Sample(64));
  const std::vector<int64_t> ids = IdsOfBatch(sample.batch);
  std::vector<double> priorities;
  for (const int64_t id : ids) priorities.push_back(10 + static_cast<double>(id));
  EXPECT_EQ(*sampler->UpdatePriorities(sample, priorities), 64u);
  for (size_t shard = 0; shard < 2; ++shard) {
    uint32_t next = 0;
    for (const ItemStore::Item& item : shards.table(shard).Peek(100, &next)) {
      const auto id = static_cast<double>(testing::IdOf(*item.trajectory));
      EXPECT_TRUE(item.priority == 1 || item.priority == 10 + id);
    }
  }
  priorities.pop_back();
  EXPECT_THAT(sampler->UpdatePriorities(sample, priorities),
              StatusIs(kWrong, HasSubstr("63 priorities for 64 items")));
}

TEST(ShardedSampler, RefusesPrioritiesOfABatchThatAnotherSamplerHasDrawn) {
  Shards three(3);
  for (size_t shard = 0; shard < 3; ++shard) three.Insert(shard, 0, 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(ShardedBatch sample, three.Sampler()->Sample(64));
  ASSERT_THAT(sample.shards, ::testing::Contains(2u));
  Shards two(2);
  const auto sampler = two.Sampler();
  const std::vector<double> priorities(64, 1.0);
  EXPECT_THAT(sampler->UpdatePriorities(sample, priorities),
              StatusIs(kWrong, HasSubstr("an item of shard 2, and this sampler has 2 shards")));
  sample.shards.resize(5);
  EXPECT_THAT(sampler->UpdatePriorities(sample, priorities),
              StatusIs(kWrong, HasSubstr("the shard of 5 of its 64")));
}

TEST(ShardedSampler, AShardThatWasEmptyIsSampledOnceItHasItems) {
  Shards shards(2);
  shards.Insert(0, 0, 1);
  const auto sampler = shards.Sampler();
  TANDEM_ASSERT_OK(sampler->Sample(4));
  shards.Insert(1, 1, 1000);
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardedBatch sample, sampler->Sample(64));
  EXPECT_THAT(IdsOfBatch(sample.batch), ::testing::Contains(1));
}

absl::Time InHalfAMinute() { return MonotonicNow() + absl::Seconds(30); }

TEST(ShardedSampler, AnEmptyShardDoesNotHoldUpABatchThatTheOthersCanGive) {
  Shards shards(2);
  const auto sampler = shards.Sampler();
  std::thread filling([&] {
    const auto waits = [&] {
      return shards.table(0).Info().waiting_samples + shards.table(1).Info().waiting_samples > 0;
    };
    const absl::Time end = InHalfAMinute();
    while (!waits() && MonotonicNow() < end) std::this_thread::yield();
    shards.Insert(1, 7, 1);
  });
  const auto sample = sampler->Sample(8, InHalfAMinute());
  filling.join();
  TANDEM_ASSERT_OK(sample);
  EXPECT_THAT(IdsOfBatch(sample->batch), ::testing::ElementsAreArray(std::vector<int64_t>(8, 7)));
  EXPECT_THAT(sample->batch.probabilities, ::testing::Each(1.0));
}

TEST(ShardedSampler, TheOthersGiveThePartOfAShardThatHasBecomeEmpty) {
  for (const bool may_wait : {true, false}) {
    Shards shards(3);
    for (int64_t id = 0; id < 9; ++id) shards.Insert(static_cast<size_t>(id % 3), id, 1);
    shards.Insert(2, 11, 3);
    const auto sampler = shards.Sampler();
    shards.table(1).Reset();
    TANDEM_ASSERT_OK_AND_ASSIGN(const ShardedBatch sample,
                                sampler->Sample(64, may_wait ? InHalfAMinute() : absl::InfinitePast()));
    ASSERT_EQ(sample.batch.size(), 64u);
    for (size_t n = 0; n < 64; ++n) {
      EXPECT_NE(sample.shards[n], 1u);
      EXPECT_NEAR(sample.batch.probabilities[n], sample.batch.priorities[n] / 9, 1e-12);
    }
    EXPECT_EQ(sample.batch.table_items, 7u);
  }
}

TEST(ShardedSampler, ASampleOfEmptyShardsEndsAtItsDeadline) {
  Shards shards(2);
  const auto sampler = shards.Sampler();
  for (const absl::Time deadline : {absl::InfinitePast(), MonotonicNow() + absl::Milliseconds(300)}) {
    EXPECT_THAT(sampler->Sample(8, deadline),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("replay shard ")));
  }
}

// A table that does not say its state.
class SilentReplay : public LocalReplay {
 public:
  absl::StatusOr<TableInfo> Info(absl::string_view table, absl::Time deadline) override {
    if (!silent) return LocalReplay::Info(table, deadline);
    asked = deadline;
    return absl::DeadlineExceededError("it is silent");
  }
  bool silent = false;
  absl::Time asked;
};

TEST(ShardedSampler, AShardThatDoesNotAnswerIsAskedUntilTheDeadlineOnly) {
  LocalReplay full;
  SilentReplay empty;
  for (Replay* const replay : std::vector<Replay*>{&full, &empty}) {
    TANDEM_ASSERT_OK(replay->CreateTable(TableOptions::Uniform("replay", 100, 1)));
  }
  TANDEM_ASSERT_OK((*full.Find("replay"))->Insert({testing::IdItem(3)}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto sampler,
                              ShardedSampler::Create({&full, &empty}, {.table = "replay"}));
  empty.silent = true;
  const absl::Time deadline = MonotonicNow() + absl::Milliseconds(500);
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardedBatch sample, sampler->Sample(4, deadline));
  EXPECT_THAT(IdsOfBatch(sample.batch), ::testing::ElementsAre(3, 3, 3, 3));
  EXPECT_NE(empty.asked, absl::Time());
  EXPECT_LE(empty.asked, deadline);
  TANDEM_ASSERT_OK(sampler->Sample(4));
  EXPECT_LE(empty.asked, deadline) << "it is not asked by each sample";
}

// A part of 7 or 8 items, as one batch in 14 has, is more than a shard gives at once.
TEST(ShardedSampler, DrawsPartsThatARateLimiterDoesNotGiveAtOnce) {
  TableOptions options = TableOptions::Uniform("replay", 1000, 1);
  options.limit = RateLimit::Ratio(/*samples_per_insert=*/1, /*min_size=*/1, /*slack=*/3);
  ASSERT_EQ(LargestBatch(options.limit), 6u);
  Shards shards(2, options);
  std::atomic<bool> done{false};
  std::vector<std::thread> writers;
  for (size_t shard = 0; shard < 2; ++shard) {
    writers.emplace_back([&, shard] {
      size_t inserted = 0;
      for (int64_t id = 0; !done; ++id) {
        (void)shards.table(shard).Insert({testing::IdItem(id)}, "writer",
                                         MonotonicNow() + absl::Milliseconds(100), &inserted);
      }
    });
  }
  const auto sampler = shards.Sampler();
  absl::Status status;
  size_t items = 0;
  for (int i = 0; i < 200 && status.ok(); ++i) {
    const auto sample = sampler->Sample(8, InHalfAMinute());
    status = sample.status();
    if (sample.ok()) items += sample->batch.size();
  }
  done = true;
  for (std::thread& writer : writers) writer.join();
  TANDEM_ASSERT_OK(status);
  EXPECT_EQ(items, 1600u);
  EXPECT_EQ(shards.table(0).Info().samples + shards.table(1).Info().samples, 1600u);
}

TEST(ShardedSampler, SeesThatALimitHasBecomeNarrower) {
  TableOptions options = TableOptions::Uniform("replay", 1000, 1);
  options.limit = RateLimit::Ratio(1, 1, /*slack=*/100);
  Shards shards(1, options);
  for (int64_t id = 0; id < 20; ++id) shards.Insert(0, id, 1);
  const auto sampler = shards.Sampler();
  TANDEM_ASSERT_OK(shards.table(0).SetLimits(RateLimit::Ratio(1, 1, /*slack=*/3), 1000, 0));
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardedBatch sample, sampler->Sample(8, InHalfAMinute()));
  EXPECT_EQ(sample.batch.size(), 8u);
}

// Returns at `time`.
void PassTime(absl::Time time) {
  const bool never = false;
  absl::Mutex mutex;
  absl::MutexLock lock(&mutex);
  Clock::Real()->AwaitUntil(&mutex, absl::Condition(&never), time);
}

// Behaves as a server behind a network: Info takes all its time if the server hangs.
class FarReplay : public LocalReplay {
 public:
  FarReplay() { TANDEM_CHECK(CreateTable(TableOptions::Prioritized("replay", 100, 1, 1.0)).ok()); }
  void Fill(int64_t id) { TANDEM_ASSERT_OK(table().Insert({testing::IdItem(id, 1)})); }
  Table& table() { return **Find("replay"); }
  absl::StatusOr<TableInfo> Info(absl::string_view table, absl::Time deadline) override {
    if (hangs) PassTime(deadline);
    if (hangs || MonotonicNow() >= deadline) return absl::DeadlineExceededError("no time is left");
    return LocalReplay::Info(table, deadline);
  }
  bool hangs = false;
};

TEST(ShardedSampler, AShardThatHangsDoesNotHideThatAnotherIsEmpty) {
  for (const bool with_mass : {false, true}) {
    FarReplay hanging, emptied, full;
    if (with_mass) hanging.Fill(0);
    emptied.Fill(1);
    full.Fill(2);
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto sampler,
                                ShardedSampler::Create({&hanging, &emptied, &full}, {.table = "replay"}));
    hanging.hangs = true;
    emptied.table().Reset();
    TANDEM_ASSERT_OK_AND_ASSIGN(const ShardedBatch sample, sampler->Sample(64, InHalfAMinute()));
    EXPECT_EQ(sample.batch.size(), 64u);
    EXPECT_THAT(sample.shards, ::testing::Not(::testing::Contains(1u)));
    EXPECT_THAT(sample.shards, ::testing::Contains(2u));
  }
}

TEST(ShardedSampler, AShardThatHangsDoesNotHideThatAnotherHasFilledUp) {
  FarReplay hanging, full, filling;
  full.Fill(1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto sampler,
                              ShardedSampler::Create({&hanging, &full, &filling}, {.table = "replay"}));
  hanging.hangs = true;
  TANDEM_ASSERT_OK(sampler->Sample(8, InHalfAMinute()));
  filling.Fill(2);
  bool found = false;
  for (int i = 0; i < 40 && !found; ++i) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const ShardedBatch sample, sampler->Sample(8, InHalfAMinute()));
    const std::vector<int64_t> ids = IdsOfBatch(sample.batch);
    found = std::find(ids.begin(), ids.end(), 2) != ids.end();
  }
  EXPECT_TRUE(found);
}

// A server whose answers need kTransfer to arrive, which counts as a part of the call.
class SlowReplay : public FarReplay {
 public:
  absl::StatusOr<Batch> Sample(absl::string_view table, const SampleSize& size, absl::Time deadline,
                               absl::string_view sampler) override {
    deadlines.push_back(deadline);
    const absl::Time arrival = MonotonicNow() + kTransfer;
    PassTime(std::min(arrival, deadline));
    if (deadline < arrival) return absl::DeadlineExceededError("the transfer was cut off");
    return LocalReplay::Sample(table, size, deadline, sampler);
  }
  static constexpr absl::Duration kTransfer = absl::Milliseconds(300);
  std::vector<absl::Time> deadlines;
};

TEST(ShardedSampler, WaitsForAPartWhoseTransferTakesLong) {
  SlowReplay slow;
  slow.Fill(5);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto sampler, ShardedSampler::Create({&slow}, {.table = "replay"}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardedBatch sample, sampler->Sample(8, InHalfAMinute()));
  EXPECT_EQ(IdsOfBatch(sample.batch), std::vector<int64_t>(8, 5));
  // The next part has the time that it needs from the start.
  slow.deadlines.clear();
  const absl::Time start = MonotonicNow();
  TANDEM_ASSERT_OK(sampler->Sample(8, InHalfAMinute()));
  EXPECT_GT(slow.deadlines[0] - start, 1.5 * SlowReplay::kTransfer);
}

// A table that loses its items once it has given some.
class VanishingReplay : public FarReplay {
 public:
  absl::StatusOr<Batch> Sample(absl::string_view name, const SampleSize& size, absl::Time deadline,
                               absl::string_view sampler) override {
    absl::StatusOr<Batch> batch = LocalReplay::Sample(name, size, deadline, sampler);
    if (batch.ok()) table().Reset();
    return batch;
  }
};

TEST(ShardedSampler, AShardThatBecomesEmptyWithinABatchLeavesNoItemsThatCouldNotBeDrawn) {
  for (const bool other_has_items : {true, false}) {
    for (const bool may_wait : {true, false}) {
      VanishingReplay vanishing;
      FarReplay emptied, other;
      vanishing.Fill(0);
      emptied.Fill(1);
      if (other_has_items) other.Fill(2);
      TANDEM_ASSERT_OK_AND_ASSIGN(
          const auto sampler, ShardedSampler::Create({&vanishing, &emptied, &other}, {.table = "replay"}));
      emptied.table().Reset();
      const absl::Time deadline =
          may_wait ? MonotonicNow() + absl::Seconds(other_has_items ? 30 : 1) : absl::InfinitePast();
      const auto sample = sampler->Sample(64, deadline);
      if (!other_has_items) {
        EXPECT_THAT(sample, StatusIs(absl::StatusCode::kDeadlineExceeded));
        continue;
      }
      TANDEM_ASSERT_OK(sample);
      EXPECT_THAT(IdsOfBatch(sample->batch), ::testing::ElementsAreArray(std::vector<int64_t>(64, 2)));
      EXPECT_THAT(sample->batch.probabilities, ::testing::Each(1.0));
      EXPECT_THAT(sample->shards, ::testing::Each(2u));
    }
  }
}

// Gives a sample only while two others are asked as well.
class MeetingReplay : public FarReplay {
 public:
  explicit MeetingReplay(std::atomic<int>* asked) : asked_(asked) {}
  absl::StatusOr<Batch> Sample(absl::string_view table, const SampleSize& size, absl::Time deadline,
                               absl::string_view sampler) override {
    if (!std::exchange(counted_, true)) ++*asked_;
    while (*asked_ < 3 && MonotonicNow() < deadline) std::this_thread::yield();
    if (*asked_ < 3) return absl::DeadlineExceededError("it is asked alone");
    return LocalReplay::Sample(table, size, deadline, sampler);
  }

 private:
  std::atomic<int>* const asked_;
  bool counted_ = false;
};

TEST(ShardedSampler, AsksAllShardsAtOnce) {
  std::atomic<int> asked{0};
  MeetingReplay first(&asked), second(&asked), third(&asked);
  first.Fill(0);
  second.Fill(1);
  third.Fill(2);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto sampler,
                              ShardedSampler::Create({&first, &second, &third}, {.table = "replay"}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardedBatch sample, sampler->Sample(64, InHalfAMinute()));
  EXPECT_EQ(sample.batch.size(), 64u);
}

// Does not answer a sample before it is released.
class HangingReplay : public FarReplay {
 public:
  absl::StatusOr<Batch> Sample(absl::string_view table, const SampleSize& size, absl::Time deadline,
                               absl::string_view sampler) override {
    asked.Notify();
    if (holds) released.WaitFor(absl::Minutes(1));
    return LocalReplay::Sample(table, size, deadline, sampler);
  }
  std::atomic<bool> holds{true};
  TimedNotification asked, released;
};

TEST(ShardedSampler, ReturnsSoonAfterItsDeadlineThoughAShardHangs) {
  FarReplay other;
  HangingReplay hanging;
  hanging.Fill(0);
  other.Fill(1);
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const auto sampler,
      ShardedSampler::Create({&hanging, &other}, {.table = "replay", .answer_time = absl::Milliseconds(50)}));
  for (const bool passed : {true, false, true}) {
    EXPECT_THAT(sampler->Sample(64, passed ? absl::InfinitePast() : MonotonicNow() + absl::Milliseconds(20)),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("replay shard 0 at table 'replay'")));
  }
  // The call that was left does not confuse later ones.
  hanging.holds = false;
  hanging.released.Notify();
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardedBatch sample, sampler->Sample(64, InHalfAMinute()));
  EXPECT_EQ(sample.batch.size(), 64u);
  EXPECT_THAT(sample.shards, ::testing::Contains(0u));
  EXPECT_THAT(sample.shards, ::testing::Contains(1u));
}

TEST(ShardedSampler, TheNextSampleKeepsWhatTheShardsHaveGiven) {
  FarReplay full;
  HangingReplay hanging;
  full.Fill(0);
  hanging.Fill(1);
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const auto sampler,
      ShardedSampler::Create({&hanging, &full}, {.table = "replay", .answer_time = absl::Milliseconds(50)}));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(sampler->Sample(64, MonotonicNow() + absl::Milliseconds(20)),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("replay shard 0")));
  }
  hanging.holds = false;
  hanging.released.Notify();
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardedBatch sample, sampler->Sample(64, InHalfAMinute()));
  EXPECT_EQ(sample.batch.size(), 64u);
  EXPECT_THAT(sample.batch.probabilities, ::testing::Each(0.5));
  EXPECT_EQ(full.table().Info().samples + hanging.table().Info().samples, 64u) << "an item was drawn in vain";
}

TEST(ShardedSampler, ASampleThatIsCancelledLosesNothing) {
  FarReplay full;
  HangingReplay hanging;
  full.Fill(0);
  hanging.Fill(1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto sampler,
                              ShardedSampler::Create({&full, &hanging}, {.table = "replay"}));
  std::stop_source stop;
  std::thread stopping([&] {
    hanging.asked.WaitFor(absl::Seconds(30));
    stop.request_stop();
  });
  EXPECT_THAT(sampler->Sample(64, absl::InfiniteFuture(), stop.get_token()),
              StatusIs(absl::StatusCode::kCancelled));
  stopping.join();
  EXPECT_THAT(sampler->Sample(64, absl::InfiniteFuture(), stop.get_token()),
              StatusIs(absl::StatusCode::kCancelled));
  hanging.holds = false;
  hanging.released.Notify();
  TANDEM_ASSERT_OK_AND_ASSIGN(const ShardedBatch sample, sampler->Sample(64, InHalfAMinute()));
  EXPECT_EQ(sample.batch.size(), 64u);
  EXPECT_EQ(full.table().Info().samples + hanging.table().Info().samples, 64u);
}

// Refuses all samples.
class RefusingReplay : public FarReplay {
 public:
  absl::StatusOr<Batch> Sample(absl::string_view, const SampleSize&, absl::Time, absl::string_view) override {
    return absl::PermissionDeniedError("not for you");
  }
};

TEST(ShardedSampler, AShardThatHangsDoesNotHoldUpTheErrorOfAnother) {
  HangingReplay hanging;
  RefusingReplay refusing;
  hanging.Fill(0);
  refusing.Fill(1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto sampler,
                              ShardedSampler::Create({&hanging, &refusing}, {.table = "replay"}));
  EXPECT_THAT(sampler->Sample(64),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("replay shard 1: not for you")));
  hanging.released.Notify();
}

TEST(ShardedSampler, DrawsBatchesAhead) {
  Shards shards(2);
  for (int64_t id = 0; id < 8; ++id) shards.Insert(static_cast<size_t>(id % 2), id, 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const auto sampler,
      ShardedSampler::Create(shards.all(), {.table = "replay", .batch = 16, .prefetch = 3}));
  const auto drawn = [&] { return shards.table(0).Info().samples + shards.table(1).Info().samples; };
  const absl::Time end = InHalfAMinute();
  while (drawn() < 48 && MonotonicNow() < end) std::this_thread::yield();
  EXPECT_EQ(drawn(), 48u);
  for (int i = 0; i < 20; ++i) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const ShardedBatch sample, sampler->Next(InHalfAMinute()));
    ASSERT_EQ(sample.batch.size(), 16u);
    EXPECT_EQ(*sampler->UpdatePriorities(sample, std::vector<double>(16, 2.0)), 16u);
  }
}

// Counts the samples that begin after `ending` has been set.
class CountingReplay : public FarReplay {
 public:
  absl::StatusOr<Batch> Sample(absl::string_view table, const SampleSize& size, absl::Time deadline,
                               absl::string_view sampler) override {
    asked = true;
    if (ending) ++late;
    return LocalReplay::Sample(table, size, deadline, sampler);
  }
  std::atomic<bool> asked{false}, ending{false};
  std::atomic<int> late{0};
};

TEST(ShardedSampler, DoesNotWaitForItemsWhenItEnds) {
  CountingReplay empty;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto sampler,
                              ShardedSampler::Create({&empty}, {.table = "replay", .batch = 4}));
  const absl::Time end = InHalfAMinute();
  while (!empty.asked && MonotonicNow() < end) std::this_thread::yield();
  // A draw asks an empty shard five times a second, for five seconds. On a busy machine the sampler needs
  // some of that time to end.
  empty.ending = true;
  sampler = nullptr;
  EXPECT_LE(empty.late, 15);
}

TEST(ShardedSampler, NextSaysWhyThereIsNoBatchAndRefusesWhatCannotBeDrawn) {
  Shards shards(1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto sampler,
                              ShardedSampler::Create(shards.all(), {.table = "replay", .batch = 4}));
  EXPECT_THAT(sampler->Next(MonotonicNow() + absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("no batch has arrived")));
  shards.Insert(0, 1, 1);
  TANDEM_EXPECT_OK(sampler->Next(InHalfAMinute()));
  EXPECT_THAT(shards.Sampler()->Next(), StatusIs(kWrong, HasSubstr("ShardedSamplerOptions::batch")));
  EXPECT_THAT(ShardedSampler::Create(shards.all(), {.table = "replay", .batch = 4, .prefetch = 0}),
              StatusIs(kWrong, HasSubstr("prefetch is 0")));
}

TEST(ShardedSampler, RefusesTablesWhoseOrderOrItemsDependOnSamples) {
  EXPECT_THAT(ShardedSampler::Create({}, {.table = "replay"}), StatusIs(kWrong));
  LocalReplay replay;
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("replay", 10)));
  EXPECT_THAT(ShardedSampler::Create({&replay}, {.table = "replay"}),
              StatusIs(kWrong, HasSubstr("replay shard 0, table 'replay': its sampler is fifo")));
  EXPECT_THAT(ShardedSampler::Create({&replay}, {.table = "none"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("replay shard 0")));
}

}  // namespace
}  // namespace tandem::replay
