// SPDX-License-Identifier: Apache-2.0
#include "weights/client/publisher.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/timed_wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/weights/models.h"
#include "weights/client/local_weights.h"

namespace tandem::weights {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using testing::Soon;

// A store that can be replaced by an empty one, and be away.
class StoreOfLives : public Weights {
 public:
  StoreOfLives() { Restart(); }
  void Restart() {
    absl::MutexLock lock(&mutex_);
    stores_.push_back(std::make_unique<ModelStore>());
  }
  void SetAway(bool away) {
    absl::MutexLock lock(&mutex_);
    away_ = away;
  }
  ModelStore& store() {
    absl::MutexLock lock(&mutex_);
    return *stores_.back();
  }

  absl::StatusOr<EpochGrant> StartEpoch(absl::string_view model, absl::string_view publisher,
                                        absl::Time) override {
    return store().StartEpoch(model, publisher);
  }
  absl::Status Commit(const std::shared_ptr<const Model>& model, absl::Time) override {
    {
      absl::MutexLock lock(&mutex_);
      if (away_) {
        ++commits_while_away_;
        return absl::UnavailableError("the store is away");
      }
    }
    return store().Commit(model);
  }
  absl::StatusOr<std::shared_ptr<const Model>> Newer(absl::string_view model, const ModelVersion& than,
                                                     absl::Time deadline) override {
    return store().Newer(model, than, deadline);
  }
  absl::StatusOr<ModelVersion> Head(absl::string_view model, absl::Time, std::stop_token = {}) override {
    {
      absl::MutexLock lock(&mutex_);
      if (away_) {
        ++looks_while_away_;
        return absl::UnavailableError("the store is away");
      }
    }
    const std::shared_ptr<const Model> head = store().Head(model);
    return head == nullptr ? ModelVersion() : head->info.version;
  }
  int commits_while_away() {
    absl::MutexLock lock(&mutex_);
    return commits_while_away_;
  }
  // Blocks until Head was called `count` times while the store was away.
  void AwaitLooksWhileAway(int count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return looks_while_away_ >= count; };
    EXPECT_TRUE(AwaitUntil(&mutex_, absl::Condition(&enough), Soon()));
  }

 private:
  absl::Mutex mutex_;
  bool away_ ABSL_GUARDED_BY(mutex_) = false;
  int commits_while_away_ ABSL_GUARDED_BY(mutex_) = 0;
  int looks_while_away_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<ModelStore>> stores_ ABSL_GUARDED_BY(mutex_);  // the last one is in use
};

// Keeps what it is told.
class ToldVersions : public VersionReceiver {
 public:
  explicit ToldVersions(uint64_t head = 0) : head_(head) {}
  absl::StatusOr<uint64_t> Head(absl::Time) override { return head_; }
  absl::Status Commit(const ModelVersion& version, const PublishInfo& info, absl::Time) override {
    absl::MutexLock lock(&mutex_);
    if (!result_.ok()) return result_;
    commits_.push_back({version.number, info.items_consumed});
    return absl::OkStatus();
  }
  void Answer(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    result_ = std::move(status);
  }
  // Waits until there are `count` commits, and returns them: (number, items consumed).
  std::vector<std::pair<uint64_t, uint64_t>> Await(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&] {
      mutex_.AssertReaderHeld();
      return commits_.size() >= count;
    };
    EXPECT_TRUE(AwaitUntil(&mutex_, absl::Condition(&enough), Soon()));
    return commits_;
  }

 private:
  const uint64_t head_;
  absl::Mutex mutex_;
  absl::Status result_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<uint64_t, uint64_t>> commits_ ABSL_GUARDED_BY(mutex_);
};

const std::vector<float> kTwoValues = {1, 2};

absl::StatusOr<uint64_t> PublishTwo(Publisher& publisher, uint64_t items, absl::Time deadline = Soon()) {
  return publisher.Publish({{"w", {2}, kTwoValues}}, {.items_consumed = items}, deadline);
}

std::unique_ptr<Publisher> MakePublisher(StoreOfLives* stores, ToldVersions* table,
                                         absl::Duration repair_every = absl::Milliseconds(5)) {
  return *Publisher::Create(stores, {.model = "policy", .commit_to = table, .repair_every = repair_every},
                            Soon());
}

TEST(Publisher, CommitsEachVersionAfterItCanBePulled) {
  StoreOfLives stores;
  ToldVersions table(/*head=*/40);
  const std::unique_ptr<Publisher> publisher = MakePublisher(&stores, &table);
  EXPECT_EQ(*PublishTwo(*publisher, 0), 41u);  // above the table's
  EXPECT_EQ(*PublishTwo(*publisher, 8), 42u);
  EXPECT_EQ(stores.store().Head("policy")->info.version, publisher->version());
  EXPECT_THAT(table.Await(2), ElementsAre(Pair(41u, 0u), Pair(42u, 8u)));
}

TEST(Publisher, AStoreThatStartsAgainGetsTheLastVersionWithoutACall) {
  StoreOfLives stores;
  ToldVersions table;
  const std::unique_ptr<Publisher> publisher = MakePublisher(&stores, &table);
  TANDEM_ASSERT_OK(PublishTwo(*publisher, 3));
  stores.Restart();
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto model, stores.Newer("policy", {}, Soon()));
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->info.version, publisher->version());
  // A table that was lost with the store admits rollouts again.
  EXPECT_THAT(table.Await(2), ElementsAre(Pair(1u, 3u), Pair(1u, 3u)));
}

TEST(Publisher, GoesOnWithAVersionThatWasLate) {
  StoreOfLives stores;
  ToldVersions table;
  const std::unique_ptr<Publisher> publisher = MakePublisher(&stores, &table);
  stores.SetAway(true);
  EXPECT_THAT(PublishTwo(*publisher, 3), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("away")));
  stores.SetAway(false);
  EXPECT_THAT(table.Await(1), ElementsAre(Pair(1u, 3u)));
  EXPECT_EQ(stores.store().Head("policy")->info.version, publisher->version());

  table.Answer(absl::UnavailableError("the table is away"));
  EXPECT_THAT(PublishTwo(*publisher, 5),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("published but not committed")));
  // Readers have it all the same.
  EXPECT_EQ(stores.store().Head("policy")->info.version.number, 2u);
  table.Answer(absl::OkStatus());
  EXPECT_THAT(table.Await(2), ElementsAre(Pair(1u, 3u), Pair(2u, 5u)));
  TANDEM_EXPECT_OK(publisher->Repeat(Soon()));
}

// A commit blocks until its deadline while the store is away, and the destructor waits for it.
TEST(Publisher, CommitsALateVersionOnlyOnceTheStoreAnswers) {
  StoreOfLives stores;
  ToldVersions table;
  const std::unique_ptr<Publisher> publisher = MakePublisher(&stores, &table);
  stores.SetAway(true);
  EXPECT_THAT(PublishTwo(*publisher, 3), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("away")));
  stores.AwaitLooksWhileAway(5);
  EXPECT_EQ(stores.commits_while_away(), 1);  // of Publish
  stores.SetAway(false);
  EXPECT_THAT(table.Await(1), ElementsAre(Pair(1u, 3u)));
}

TEST(Publisher, AnotherPublishTakesThePlaceOfAVersionThatWasLate) {
  StoreOfLives stores;
  ToldVersions table;
  const std::unique_ptr<Publisher> publisher =
      MakePublisher(&stores, &table, /*repair_every=*/absl::ZeroDuration());
  stores.SetAway(true);
  EXPECT_THAT(PublishTwo(*publisher, 3), StatusIs(absl::StatusCode::kUnavailable));
  stores.SetAway(false);
  EXPECT_EQ(*PublishTwo(*publisher, 4), 2u);
  EXPECT_THAT(table.Await(1), ElementsAre(Pair(2u, 4u)));
}

TEST(Publisher, SaysThatAnotherOneHasTakenOver) {
  StoreOfLives stores;
  const std::unique_ptr<Publisher> first = MakePublisher(&stores, nullptr);
  TANDEM_ASSERT_OK(PublishTwo(*first, 0));
  TANDEM_EXPECT_OK(first->status());
  const std::unique_ptr<Publisher> second = MakePublisher(&stores, nullptr);
  TANDEM_ASSERT_OK(PublishTwo(*second, 0));
  const absl::Time deadline = Soon();
  while (first->status().ok() && MonotonicNow() < deadline) std::this_thread::yield();
  EXPECT_THAT(first->status(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("replaced by")));
  TANDEM_EXPECT_OK(second->status());
  EXPECT_EQ(stores.store().Head("policy")->info.version, second->version());
}

TEST(Publisher, RepairsNothingAfterTheEndOfRepairs) {
  StoreOfLives stores;
  ToldVersions table;
  const std::unique_ptr<Publisher> publisher = MakePublisher(&stores, &table);
  TANDEM_ASSERT_OK(PublishTwo(*publisher, 0));
  publisher->EndRepairs();
  stores.Restart();
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto model,
                              stores.Newer("policy", {}, MonotonicNow() + absl::Milliseconds(50)));
  EXPECT_EQ(model, nullptr);
  TANDEM_EXPECT_OK(publisher->Repeat(Soon()));
  EXPECT_EQ(stores.store().Head("policy")->info.version, publisher->version());
}

}  // namespace
}  // namespace tandem::weights
