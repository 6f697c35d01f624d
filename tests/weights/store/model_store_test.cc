// SPDX-License-Identifier: Apache-2.0
#include "weights/store/model_store.h"

#include <atomic>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/weights/models.h"
#include "weights/client/local_weights.h"
#include "weights/client/publisher.h"

namespace tandem::weights {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Soon;
using testing::Uniform;
using testing::ValueOf;

constexpr auto kFailedPrecondition = absl::StatusCode::kFailedPrecondition;

std::vector<NamedTensor> Tensors(const std::vector<float>& values) {
  return {{"x", {static_cast<int64_t>(values.size())}, values}};
}

TEST(ModelStore, ACommittedVersionIsTheHead) {
  ModelStore store;
  EXPECT_EQ(store.Head("policy"), nullptr);
  TANDEM_ASSERT_OK_AND_ASSIGN(const EpochGrant grant, store.StartEpoch("policy", "learner/0"));
  EXPECT_EQ(grant.version, 0u);
  TANDEM_ASSERT_OK(store.Commit(Uniform({grant.epoch, 1}, 1)));
  TANDEM_ASSERT_OK(store.Commit(Uniform({grant.epoch, 5}, 2)));
  EXPECT_EQ(ValueOf(*store.Head("policy")), 2);
  EXPECT_EQ(store.Head("value"), nullptr);
  TANDEM_ASSERT_OK_AND_ASSIGN(const EpochGrant next, store.StartEpoch("policy", "learner/1"));
  EXPECT_GT(next.epoch, grant.epoch);
  EXPECT_EQ(next.version, 5u);
}

TEST(ModelStore, NumbersRise) {
  ModelStore store;
  TANDEM_ASSERT_OK(store.Commit(Uniform({1, 5}, 5)));
  EXPECT_THAT(store.Commit(Uniform({1, 4}, 4)),
              StatusIs(kFailedPrecondition, HasSubstr("version 4 (epoch 1) of 'learner/0' does not exceed "
                                                      "the head, version 5 (epoch 1)")));
  EXPECT_THAT(store.Commit(Uniform({1, 5}, 6)),
              StatusIs(kFailedPrecondition, HasSubstr("numbers must rise")));
  EXPECT_THAT(store.Commit(Uniform({2, 5}, 6)),
              StatusIs(kFailedPrecondition, HasSubstr("numbers must rise")));
  TANDEM_EXPECT_OK(store.Commit(Uniform({1, 5}, 5)));  // repeated
  EXPECT_EQ(ValueOf(*store.Head("policy")), 5);
  EXPECT_EQ(store.List()[0].publishes, 1u);
  EXPECT_EQ(store.List()[0].refused, 3u);
  EXPECT_THAT(store.Commit(Uniform({0, 1}, 1)), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(store.Commit(Uniform({1, 0}, 1)), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ModelStore, ALearnerThatWasReplacedIsRefusedByName) {
  ModelStore store;
  LocalWeights weights(&store);
  const std::vector<float> values = {1};
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto old,
                              Publisher::Create(&weights, {.model = "policy", .name = "old"}, Soon()));
  TANDEM_ASSERT_OK(old->Publish(Tensors(values), {}, Soon()));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto young,
                              Publisher::Create(&weights, {.model = "policy", .name = "young"}, Soon()));
  // The old one is refused even before the new one has published anything.
  EXPECT_THAT(old->Publish(Tensors(values), {}, Soon()),
              StatusIs(kFailedPrecondition, HasSubstr("'old' of epoch")));
  EXPECT_THAT(old->Repeat(Soon()), StatusIs(kFailedPrecondition, HasSubstr("replaced by 'young'")));
  TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t version, young->Publish(Tensors(values), {}, Soon()));
  EXPECT_EQ(version, 2u);
}

TEST(ModelStore, AnInterruptedPublishIsRepeatedOrReplaced) {
  ModelStore store;
  LocalWeights weights(&store);
  const std::vector<float> values = {1};
  // A learner that dies after StartEpoch leaves the head as it is.
  TANDEM_ASSERT_OK_AND_ASSIGN(auto first, Publisher::Create(&weights, {.model = "policy"}, Soon()));
  TANDEM_ASSERT_OK(first->Publish(Tensors(values), {.step = 7}, Soon()));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto dead, Publisher::Create(&weights, {.model = "policy"}, Soon()));
  dead = nullptr;
  EXPECT_EQ(store.Head("policy")->info.step, 7u);
  // A learner that dies after a commit is followed by one whose numbers are larger.
  TANDEM_ASSERT_OK_AND_ASSIGN(auto next,
                              Publisher::Create(&weights, {.model = "policy", .after_version = 40}, Soon()));
  TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t version, next->Publish(Tensors(values), {.step = 3}, Soon()));
  EXPECT_EQ(version, 41u);
  TANDEM_EXPECT_OK(next->Repeat(Soon()));
  EXPECT_EQ(store.List()[0].publishes, 2u);
}

TEST(ModelStore, AStoreThatHasStartedAgainTakesTheRunningPublisher) {
  const std::vector<float> values = {1};
  ModelStore first, second;
  TANDEM_ASSERT_OK_AND_ASSIGN(const EpochGrant grant, first.StartEpoch("policy", "learner/0"));
  TANDEM_ASSERT_OK(second.Commit(Uniform({grant.epoch, 9}, 9)));
  EXPECT_EQ(ValueOf(*second.Head("policy")), 9);
  TANDEM_ASSERT_OK_AND_ASSIGN(const EpochGrant later, second.StartEpoch("policy", "learner/0"));
  EXPECT_GT(later.epoch, grant.epoch);
  // Also if the other one has lost the epoch.
  ModelStore third;
  TANDEM_ASSERT_OK_AND_ASSIGN(const EpochGrant last, third.StartEpoch("policy", "learner/0"));
  EXPECT_GE(last.epoch, grant.epoch);
}

TEST(ModelStore, ARepeatedStartBeginsNoOtherEpoch) {
  ModelStore store;
  TANDEM_ASSERT_OK_AND_ASSIGN(const EpochGrant grant, store.StartEpoch("policy", "learner/0", /*token=*/7));
  TANDEM_ASSERT_OK_AND_ASSIGN(const EpochGrant again, store.StartEpoch("policy", "learner/0", 7));
  EXPECT_EQ(again.epoch, grant.epoch);
  TANDEM_ASSERT_OK(store.Commit(Uniform({grant.epoch, 1}, 1)));
  // A repetition that arrives after a later start replaces nobody.
  TANDEM_ASSERT_OK_AND_ASSIGN(const EpochGrant later, store.StartEpoch("policy", "learner/1", 8));
  EXPECT_GT(later.epoch, grant.epoch);
  TANDEM_ASSERT_OK_AND_ASSIGN(const EpochGrant late, store.StartEpoch("policy", "learner/0", 7));
  EXPECT_EQ(late.epoch, grant.epoch);
  EXPECT_EQ(store.List()[0].publisher, "learner/1");
  TANDEM_EXPECT_OK(store.Commit(Uniform({later.epoch, 2}, 2)));
  EXPECT_THAT(store.Commit(Uniform({grant.epoch, 3}, 3)), StatusIs(kFailedPrecondition));
  // Starts without a token, and those of another model, are starts of their own.
  TANDEM_ASSERT_OK_AND_ASSIGN(const EpochGrant third, store.StartEpoch("policy", "learner/2"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const EpochGrant fourth, store.StartEpoch("policy", "learner/2"));
  EXPECT_GT(fourth.epoch, third.epoch);
  TANDEM_ASSERT_OK(store.StartEpoch("value", "learner/0", 8));
  EXPECT_EQ(store.List()[1].publisher, "learner/0");
}

TEST(ModelStore, ADamagedModelIsRefused) {
  ModelStore store;
  TANDEM_ASSERT_OK(store.Commit(Uniform({1, 1}, 1)));
  const std::shared_ptr<Model> damaged = Uniform({1, 2}, 2);
  const_cast<float*>(damaged->data.get())[4] = 3;
  EXPECT_THAT(store.Commit(damaged), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged on its way")));
  EXPECT_EQ(ValueOf(*store.Head("policy")), 1);
}

TEST(ModelStore, KeepsTheNewestVersions) {
  ModelStore store({.keep = 3});
  for (uint64_t number = 1; number <= 5; ++number)
    TANDEM_ASSERT_OK(store.Commit(Uniform({1, number}, static_cast<float>(number))));
  EXPECT_THAT(store.List()[0].kept, ElementsAre(3, 4, 5));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto kept, store.Get("policy", {1, 3}));
  EXPECT_EQ(ValueOf(*kept), 3);
  EXPECT_THAT(store.Get("policy", {1, 2}),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("version 2 (epoch 1) is not kept; there are version 3 (epoch 1), ")));
  EXPECT_THAT(store.Get("value", {1, 2}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no version of model 'value'")));
}

TEST(ModelStore, ItsMemoryIsBounded) {
  ModelStore store({.keep = 2, .max_bytes = 3 * 7 * sizeof(float), .max_models = 1});
  for (uint64_t number = 1; number <= 5; ++number) TANDEM_ASSERT_OK(store.Commit(Uniform({1, number}, 1)));
  EXPECT_THAT(store.Commit(Uniform({1, 6}, 1, /*rows=*/100)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("exceeds the limit of 84 bytes")));
  EXPECT_THAT(store.StartEpoch("value", ""), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(store.StartEpoch("", ""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(store.Head("policy")->info.version.number, 5u);
}

TEST(ModelStore, OldVersionsMakeRoomForALargerOne) {
  // Three versions of 28 bytes fit, and one of 68.
  ModelStore store({.keep = 4, .max_bytes = 95});
  for (uint64_t number = 1; number <= 5; ++number) TANDEM_ASSERT_OK(store.Commit(Uniform({1, number}, 1)));
  EXPECT_THAT(store.List()[0].kept, ElementsAre(3, 4, 5));
  for (uint64_t number = 6; number <= 8; ++number)
    TANDEM_ASSERT_OK(store.Commit(Uniform({1, number}, 1, /*rows=*/8)));
  EXPECT_THAT(store.List()[0].kept, ElementsAre(8));
  // The versions of another model are not dropped.
  const std::shared_ptr<Model> other = Uniform({1, 1}, 1, /*rows=*/8);
  other->info.model = "value";
  EXPECT_THAT(store.Commit(other),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("beside 68 of other models")));
  TANDEM_EXPECT_OK(store.Commit(Uniform({1, 9}, 1)));
  EXPECT_THAT(store.List()[0].kept, ElementsAre(9));
}

TEST(ModelStore, RefusedVersionsLeaveNoModelBehind) {
  ModelStore store({.max_bytes = 28, .max_models = 1});
  for (int i = 0; i < 3; ++i) {
    const std::shared_ptr<Model> damaged = Uniform({1, 1}, 1);
    damaged->info.model = absl::StrCat("damaged/", i);
    damaged->info.digest ^= 1;
    EXPECT_THAT(store.Commit(damaged), StatusIs(absl::StatusCode::kDataLoss));
    const std::shared_ptr<Model> large = Uniform({1, 1}, 1, /*rows=*/8);
    large->info.model = absl::StrCat("large/", i);
    EXPECT_THAT(store.Commit(large), StatusIs(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_EQ(store.List().size(), 0u);
  TANDEM_EXPECT_OK(store.Commit(Uniform({1, 1}, 1)));
}

TEST(ModelStore, LongNamesAreRefused) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const std::string name(kMaxNameBytes + 1, 'x');
  ModelStore store;
  const std::shared_ptr<Model> model = Uniform({1, 1}, 1);
  model->info.publisher = name;
  EXPECT_THAT(
      store.Commit(model),
      StatusIs(kInvalid, HasSubstr("the name of a publisher has 257 bytes; it must have at most 256")));
  model->info.publisher = "";
  model->info.model = name;
  EXPECT_THAT(store.Commit(model), StatusIs(kInvalid, HasSubstr("the name of a model has 257 bytes")));
  absl::Status ended;
  EXPECT_EQ(store.Watch(name, {}, [&](const auto& newer) { ended = newer.status(); }), 0u);
  EXPECT_THAT(ended, StatusIs(kInvalid, HasSubstr("the name of a model has 257 bytes")));
  EXPECT_EQ(store.List().size(), 0u);
}

TEST(ModelStore, HugeEpochsAndNumbersAreRefused) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  ModelStore store;
  TANDEM_ASSERT_OK(store.Commit(Uniform({1, 1}, 1)));
  EXPECT_THAT(store.Commit(Uniform({kMost, 2}, 2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must be 1 to 4611686018427387904")));
  EXPECT_THAT(store.Commit(Uniform({1, kMost}, 2)), StatusIs(absl::StatusCode::kInvalidArgument));
  TANDEM_ASSERT_OK_AND_ASSIGN(const EpochGrant grant, store.StartEpoch("policy", "learner/0"));
  EXPECT_EQ(grant.version, 1u);
  TANDEM_EXPECT_OK(store.Commit(Uniform({grant.epoch, 2}, 2)));
  // The largest epoch that a commit may have is followed by one that may commit.
  TANDEM_ASSERT_OK(store.Commit(Uniform({uint64_t{1} << 62, 3}, 3)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const EpochGrant next, store.StartEpoch("policy", "learner/1"));
  EXPECT_GT(next.epoch, uint64_t{1} << 62);
  TANDEM_EXPECT_OK(store.Commit(Uniform({next.epoch, 4}, 4)));
}

TEST(ModelStore, AReaderWaitsForANewerVersion) {
  ModelStore store;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto none, store.Newer("policy", {}, MonotonicNow()));
  EXPECT_EQ(none, nullptr);
  std::thread publisher([&] { TANDEM_EXPECT_OK(store.Commit(Uniform({1, 1}, 1))); });
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto first, store.Newer("policy", {}, Soon()));
  publisher.join();
  EXPECT_EQ(first->info.version, (ModelVersion{1, 1}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto same, store.Newer("policy", {1, 1}, MonotonicNow()));
  EXPECT_EQ(same, nullptr);
  // A number that is not larger is newer all the same if its publisher has begun later.
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto newer, store.Newer("policy", {0, 100}, Soon()));
  EXPECT_EQ(newer->info.version, (ModelVersion{1, 1}));
}

TEST(ModelStore, AWatchRunsOnceAndCanBeCancelled) {
  ModelStore store;
  int runs = 0;
  const auto count = [&](const absl::StatusOr<std::shared_ptr<const Model>>& newer) {
    runs += newer.ok() ? 1 : 100;
  };
  EXPECT_NE(store.Watch("policy", {1, 1}, count), 0u);
  const uint64_t cancelled = store.Watch("policy", {1, 1}, count);
  EXPECT_EQ(store.List().size(), 0u);
  TANDEM_ASSERT_OK(store.Commit(Uniform({1, 1}, 1)));
  EXPECT_EQ(store.List()[0].waiting, 2u);
  EXPECT_TRUE(store.CancelWatch(cancelled));
  EXPECT_FALSE(store.CancelWatch(cancelled));
  TANDEM_ASSERT_OK(store.Commit(Uniform({1, 2}, 1)));
  TANDEM_ASSERT_OK(store.Commit(Uniform({1, 3}, 1)));
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(store.Watch("policy", {1, 2}, count), 0u);
  EXPECT_EQ(runs, 2);
  EXPECT_NE(store.Watch("policy", {1, 3}, count), 0u);
  store.Stop();
  EXPECT_EQ(runs, 102);
  EXPECT_THAT(store.Newer("policy", {1, 3}, Soon()), StatusIs(absl::StatusCode::kCancelled));
}

TEST(ModelStore, ReadersSeeWholeVersionsInTheirOrder) {
  ModelStore store({.keep = 1});
  constexpr uint64_t kVersions = 2000;
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      ModelVersion have;
      while (have.number < kVersions) {
        const auto newer = store.Newer("policy", have, Soon());
        TANDEM_ASSERT_OK(newer);
        ASSERT_NE(*newer, nullptr);
        ASSERT_GT((*newer)->info.version, have);
        have = (*newer)->info.version;
        ASSERT_EQ(ValueOf(**newer), static_cast<float>(have.number));
      }
    });
  }
  for (uint64_t number = 1; number <= kVersions; ++number)
    TANDEM_ASSERT_OK(store.Commit(Uniform({1, number}, static_cast<float>(number), 50)));
  for (std::thread& reader : readers) reader.join();
}

TEST(ModelStore, OfTwoLearnersThatRaceOneWins) {
  ModelStore store;
  LocalWeights weights(&store);
  constexpr int kLearners = 4, kVersions = 300;
  std::atomic<int> winners{0};
  std::vector<std::thread> learners;
  for (int i = 0; i < kLearners; ++i) {
    learners.emplace_back([&, i] {
      const std::vector<float> values(64, static_cast<float>(i));
      auto publisher = Publisher::Create(&weights, {.model = "policy", .name = std::to_string(i)}, Soon());
      TANDEM_ASSERT_OK(publisher);
      for (int n = 0; n < kVersions; ++n) {
        const auto version = (*publisher)->Publish(Tensors(values), {}, Soon());
        if (version.ok()) continue;
        EXPECT_THAT(version, StatusIs(kFailedPrecondition, HasSubstr("replaced")));
        return;
      }
      ++winners;
    });
  }
  for (std::thread& learner : learners) learner.join();
  EXPECT_GE(winners, 1);
  const ModelState state = store.List()[0];
  EXPECT_EQ(state.head->info.publisher, state.publisher);
  EXPECT_EQ(ValueOf(*state.head), static_cast<float>(std::stoi(state.publisher)));
}

}  // namespace
}  // namespace tandem::weights
