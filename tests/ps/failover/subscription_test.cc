// SPDX-License-Identifier: Apache-2.0
// Subscribers of a shard with followers get only what no failover takes back, and everything again
// afterwards.

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/failover/copies.h"
#include "tests/ps/server/durable_shard.h"
#include "tests/ps/server/subscriber.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;

// Waits until the rows of the server contain `version` updates. Returns false after a minute.
bool AwaitVersion(Driver& server, uint64_t version) {
  const absl::Time deadline = MonotonicNow() + kTestDeadline;
  while (server.Table("user").statistics().version() < version) {
    if (MonotonicNow() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(FailoverSubscription, AnUpdateIsGivenWhenTheFollowersHaveIt) {
  ServerCopy follower("b"), primary("a");
  primary.Lead();
  TANDEM_ASSERT_OK(primary->CreateTable(TestTable("user", 1, 1, Async(), Sgd(1))));
  TANDEM_ASSERT_OK(primary->CreateTable(TestTable("idle", 1, 1, Async(), Sgd(1))));
  primary.Attach(follower);
  primary.AwaitFollower(follower);
  Subscriber subscriber(primary.operator->()), idle(primary.operator->());
  idle.tables = {"idle"};
  TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  TANDEM_ASSERT_OK(idle.CatchUp().status());

  follower.CutAfter(follower.path().receiver().state().stored_number);
  const std::shared_ptr<TestCall> push = primary->StartPush({}, {{"user", 1, {7}, {1}}});
  ASSERT_TRUE(AwaitVersion(*primary.operator->(), 1));
  const std::shared_ptr<TestCall> changes = subscriber.Start();
  // Questions are worked on in their order, so the row was read when this one is answered.
  TANDEM_ASSERT_OK(idle.Next().status());
  EXPECT_FALSE(push->answered());
  EXPECT_FALSE(changes->answered());
  follower.CutAfter(~uint64_t{0});
  TANDEM_ASSERT_OK(push->Wait().status());
  TANDEM_ASSERT_OK(subscriber.Finish(*changes).status());
  EXPECT_EQ(subscriber.rows("user").size(), 1);
}

TEST(FailoverSubscription, TheNextPrimaryGivesEverythingThatWasAcknowledged) {
  ServerCopy follower("b");
  std::string position;
  std::map<uint64_t, std::vector<float>> rows;
  {
    ServerCopy primary("a");
    primary.Lead();
    TANDEM_ASSERT_OK(primary->CreateTable(TestTable("user", 1, 1, Async(), Sgd(1))));
    primary.Attach(follower);
    primary.AwaitFollower(follower);
    Subscriber subscriber(primary.operator->());
    for (uint64_t step = 0; step < 20; ++step) {
      TANDEM_ASSERT_OK(primary->Push({.step = step}, {{"user", 1, {step % 7}, {1}}}).status());
      if (step == 10) {
        TANDEM_ASSERT_OK(subscriber.CatchUp().status());
      }
    }
    position = subscriber.position;
    rows = subscriber.rows("user");
    EXPECT_EQ(rows.size(), 7);
    Subscriber early(follower.operator->());
    EXPECT_THAT(early.Next().status(), StatusIs(absl::StatusCode::kUnavailable));
  }
  follower.TakeOver();
  Subscriber subscriber(follower.operator->());
  subscriber.position = position;
  subscriber.rows("user") = rows;
  TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  EXPECT_EQ(subscriber.rows("user"), RowsOf(*follower.operator->(), "user"));
}

TEST(LogSubscription, AServerThatWasKilledGivesWhatItHadAcknowledged) {
  Shard shard;
  TANDEM_ASSERT_OK(shard.Start());
  TANDEM_ASSERT_OK(shard->CreateTable(TestTable("user", 1, 1, Async(), Sgd(1))));
  std::string position;
  {
    Subscriber subscriber(shard.operator->());
    for (uint64_t step = 0; step < 20; ++step) {
      TANDEM_ASSERT_OK(shard->Push({.step = step}, {{"user", 1, {step % 7}, {1}}}).status());
      if (step == 10) {
        TANDEM_ASSERT_OK(subscriber.CatchUp().status());
      }
    }
    position = subscriber.position;
  }
  shard.Kill();
  TANDEM_ASSERT_OK(shard.Start());
  Subscriber subscriber(shard.operator->());
  subscriber.position = position;
  TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  EXPECT_EQ(subscriber.rows("user"), RowsOf(*shard.operator->(), "user"));
  EXPECT_EQ(subscriber.rows("user").size(), 7);
}

}  // namespace
}  // namespace tandem::ps::testing
