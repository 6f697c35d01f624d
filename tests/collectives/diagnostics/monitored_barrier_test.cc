// SPDX-License-Identifier: Apache-2.0
#include "collectives/diagnostics/monitored_barrier.h"

#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "cluster/store/memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(30);

class MonitoredBarrierTest : public ::testing::Test {
 protected:
  void Make(int world_size) {
    for (int rank = 0; rank < world_size; ++rank) {
      barriers_.push_back(std::make_unique<MonitoredBarrier>(&store_, "g", rank, world_size));
    }
  }
  // Returns the results of `ranks`, which all come at once.
  std::vector<absl::Status> Come(const std::vector<int>& ranks, absl::Duration timeout) {
    std::vector<absl::Status> results(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] { results[i] = barriers_[ranks[i]]->Wait(timeout); });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }
  // Returns the results of `ranks`, the last of which comes to the first round after the others, and gives
  // up.
  std::vector<absl::Status> GiveUp(const std::vector<int>& ranks) {
    const size_t last = ranks.size() - 1;
    std::vector<absl::Status> results(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < last; ++i) {
      threads.emplace_back([&, i] { results[i] = barriers_[ranks[i]]->Wait(kLong); });
    }
    while (store_.List("monitored_barrier/0/here/")->size() < last) std::this_thread::yield();
    results[last] = barriers_[ranks[last]]->Wait(kShort);
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  cluster::MemoryStore store_;
  std::vector<std::unique_ptr<MonitoredBarrier>> barriers_;
};

TEST_F(MonitoredBarrierTest, PassesWhenAllRanksCome) {
  Make(4);
  for (int round = 0; round < 20; ++round) {
    for (const absl::Status& status : Come({0, 1, 2, 3}, kLong)) TANDEM_EXPECT_OK(status);
  }
  // Old rounds leave no keys.
  EXPECT_THAT(*store_.List(""), SizeIs(::testing::Le(6)));
}

TEST_F(MonitoredBarrierTest, NobodyPassesBeforeTheLastHasCome) {
  Make(2);
  absl::Notification passed;
  std::thread first([&] {
    TANDEM_EXPECT_OK(barriers_[0]->Wait(kLong));
    passed.Notify();
  });
  EXPECT_FALSE(passed.WaitForNotificationWithTimeout(kShort));
  TANDEM_EXPECT_OK(barriers_[1]->Wait(kLong));
  first.join();
}

TEST_F(MonitoredBarrierTest, EveryAbsentRankIsNamedOnEveryRankThatCame) {
  Make(5);
  for (const absl::Status& status : GiveUp({0, 2, 3})) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                 AllOf(HasSubstr("'g'"), HasSubstr("ranks 1, 4 did not come"),
                                       HasSubstr("gave up after 30ms"), Not(HasSubstr("this rank")))));
  }
}

TEST_F(MonitoredBarrierTest, ARankWithALongerTimeoutLearnsThatAnotherGaveUp) {
  Make(3);
  absl::Status patient;
  std::thread thread([&] { patient = barriers_[0]->Wait(kLong); });
  // Rank 1 gives up once rank 0 has come: before that its verdict would name rank 0 as well.
  while (store_.List("monitored_barrier/0/here/")->empty()) std::this_thread::yield();
  EXPECT_THAT(barriers_[1]->Wait(kShort), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                                   HasSubstr("rank 2 did not come; rank 1 gave up")));
  thread.join();
  EXPECT_THAT(patient, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                HasSubstr("rank 2 did not come; rank 1 gave up")));
}

TEST_F(MonitoredBarrierTest, ALateRankIsToldAndTheNextRoundWorks) {
  Make(3);
  for (const absl::Status& status : GiveUp({0, 1})) EXPECT_FALSE(status.ok());
  EXPECT_THAT(barriers_[2]->Wait(kLong),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("monitored_barrier #0"), HasSubstr("rank 2 did not come"),
                             HasSubstr("this rank came when the others had already given up"))));
  for (const absl::Status& status : Come({0, 1, 2}, kLong)) TANDEM_EXPECT_OK(status);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> keys, store_.List(""));
  for (const std::string& key : keys) {
    EXPECT_TRUE(absl::StartsWith(key, "monitored_barrier/1/")) << key;
  }
}

TEST_F(MonitoredBarrierTest, AWorldOfOneNeedsNoStore) {
  MonitoredBarrier barrier(nullptr, "alone", 0, 1);
  TANDEM_EXPECT_OK(barrier.Wait(absl::ZeroDuration()));
}

TEST_F(MonitoredBarrierTest, AStoreThatCountsARepeatedAdditionTwiceLetsNobodyPassEarly) {
  Make(3);
  TANDEM_ASSERT_OK(store_.Add("monitored_barrier/0/count", 2));
  EXPECT_THAT(barriers_[0]->Wait(kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("ranks 1, 2 did not come")));
}

}  // namespace
}  // namespace tandem::collectives
