// SPDX-License-Identifier: Apache-2.0
#include "launcher/round_monitor.h"

#include <poll.h>

#include <atomic>
#include <utility>

#include "absl/synchronization/notification.h"
#include "tests/testing/status_matchers.h"

namespace tandem::launcher {
namespace {

using cluster::Node;
using cluster::Rendezvous;
using cluster::RendezvousEvent;
using cluster::Round;
using ::tandem::testing::StatusIs;

// A rendezvous whose Join returns at once, and whose round is over after RequestRestart or Close.
class FakeRendezvous : public Rendezvous {
 public:
  absl::StatusOr<Round> Join(const Node& node) override {
    absl::MutexLock lock(&mutex_);
    if (!may_join_) {
      mutex_.Await(absl::Condition(&left_));
      return absl::CancelledError("left");
    }
    if (outages_ > 0) {
      --outages_;
      return absl::UnavailableError("the store is away");
    }
    over_ = false;
    return Round{.epoch = ++epoch_, .nodes = {node}};
  }
  absl::StatusOr<RendezvousEvent> WaitForEvent(int64_t, absl::Time) override {
    absl::MutexLock lock(&mutex_);
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return over_ || left_; };
    mutex_.Await(absl::Condition(&ended));
    if (!over_) return absl::CancelledError("left");
    return RendezvousEvent{.reason = reason_};
  }
  absl::Status RequestRestart(int64_t, absl::string_view reason, int) override {
    absl::MutexLock lock(&mutex_);
    over_ = true;
    reason_ = std::string(reason);
    return absl::OkStatus();
  }
  absl::Status Finish(int64_t) override { return absl::UnavailableError("nobody is there"); }
  absl::Status Close(bool, absl::string_view, int) override { return absl::OkStatus(); }
  absl::Status Stop(absl::string_view, int) override { return absl::OkStatus(); }
  void OnLease(std::function<void(absl::Time)>) override {}
  bool MayStart(int64_t, int) override { return true; }
  absl::Status RecordRestarts(int64_t, int) override { return absl::OkStatus(); }
  absl::Status Leave() override {
    absl::MutexLock lock(&mutex_);
    left_ = true;
    return absl::OkStatus();
  }
  // The next `joins` calls of Join fail.
  void Fail(int joins) {
    absl::MutexLock lock(&mutex_);
    outages_ = joins;
  }
  void Forbid() {
    absl::MutexLock lock(&mutex_);
    may_join_ = false;
  }

 private:
  absl::Mutex mutex_;
  bool may_join_ ABSL_GUARDED_BY(mutex_) = true;
  int outages_ ABSL_GUARDED_BY(mutex_) = 0;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
};

constexpr absl::Duration kTestTimeout = absl::Seconds(60);  // far more than anything takes

absl::Status Ready(const std::function<bool()>&) { return absl::OkStatus(); }

// Returns the next event.
AgentEvent Next(RoundMonitor& watch) {
  pollfd ready = {watch.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(kTestTimeout))), 1);
  std::vector<AgentEvent> news = watch.Take();
  EXPECT_EQ(news.size(), 1u);
  return news.empty() ? AgentEvent{} : news[0];
}

TEST(RoundMonitorTest, RoundsBeginAndEndAsNews) {
  FakeRendezvous rendezvous;
  RoundMonitor watch(&rendezvous, Ready);
  for (int64_t epoch = 1; epoch <= 2; ++epoch) {
    watch.Join({.id = "n"});
    const AgentEvent begun = Next(watch);
    EXPECT_EQ(begun.kind, AgentEvent::Kind::kRound);
    EXPECT_EQ(begun.round.epoch, epoch);
    watch.Tell([epoch](Rendezvous& to) { return to.RequestRestart(epoch, "a worker died", 9); });
    const AgentEvent over = Next(watch);
    EXPECT_EQ(over.kind, AgentEvent::Kind::kRoundOver);
    EXPECT_EQ(over.epoch, epoch);
    EXPECT_EQ(over.event.reason, "a worker died");
  }
}

TEST(RoundMonitorTest, WhatCannotBeToldOrReachedIsNews) {
  FakeRendezvous rendezvous;
  RoundMonitor watch(&rendezvous,
                     [](const std::function<bool()>&) { return absl::UnavailableError("no route"); });
  watch.Tell([](Rendezvous& to) { return to.Finish(1); });
  AgentEvent news = Next(watch);
  EXPECT_EQ(news.kind, AgentEvent::Kind::kTold);
  EXPECT_THAT(news.status, StatusIs(absl::StatusCode::kUnavailable));
  watch.Join({.id = "n"});
  news = Next(watch);
  EXPECT_EQ(news.kind, AgentEvent::Kind::kRound);
  EXPECT_THAT(news.status, StatusIs(absl::StatusCode::kUnavailable, "no route"));
}

TEST(RoundMonitorTest, AJoinThatFindsTheStoreAwayIsRepeatedOnceItIsReached) {
  FakeRendezvous rendezvous;
  std::atomic<int> reached = 0;
  RoundMonitor watch(&rendezvous, [&](const std::function<bool()>&) {
    return ++reached < 4 ? absl::OkStatus() : absl::UnavailableError("it stays away");
  });
  rendezvous.Fail(2);
  watch.Join({.id = "n"});
  EXPECT_EQ(Next(watch).round.epoch, 1);
  EXPECT_EQ(reached, 3);
  watch.Tell([](Rendezvous& to) { return to.RequestRestart(1, "again", 9); });
  EXPECT_EQ(Next(watch).kind, AgentEvent::Kind::kRoundOver);
  rendezvous.Fail(1);
  watch.Join({.id = "n"});
  EXPECT_THAT(Next(watch).status, StatusIs(absl::StatusCode::kUnavailable, "it stays away"));
}

TEST(RoundMonitorTest, NobodyJoinsAfterHavingLeft) {
  FakeRendezvous rendezvous;
  absl::Notification waits, left;
  bool first = true;
  RoundMonitor watch(&rendezvous, [&](const std::function<bool()>&) {
    if (!std::exchange(first, false)) {  // the store was away, and a signal comes before it is back
      waits.Notify();
      left.WaitForNotification();
    }
    return absl::OkStatus();
  });
  rendezvous.Fail(1);
  watch.Join({.id = "n"});
  waits.WaitForNotification();
  watch.Leave();
  left.Notify();
  EXPECT_THAT(Next(watch).status, StatusIs(absl::StatusCode::kUnavailable));
}

TEST(RoundMonitorTest, ItsEndInterruptsWhateverWaits) {
  FakeRendezvous rendezvous;
  rendezvous.Forbid();
  RoundMonitor watch(&rendezvous, Ready);
  watch.Join({.id = "n"});
}

TEST(RoundMonitorTest, WhatWasToldBeforeItsEndIsDelivered) {
  FakeRendezvous rendezvous;
  absl::Notification delivered;
  {
    RoundMonitor watch(&rendezvous, Ready);
    watch.Tell([&delivered](Rendezvous&) {
      delivered.Notify();
      return absl::OkStatus();
    });
  }
  EXPECT_TRUE(delivered.HasBeenNotified());
}

TEST(RoundMonitorTest, TheMembersVerdictIsNews) {
  FakeRendezvous rendezvous;
  const auto membership = std::make_shared<cluster::LocalMembership>(Clock::Real());
  RoundMonitor watch(&rendezvous, Ready);
  watch.Watch(membership, 7);
  TANDEM_EXPECT_OK(membership->End("worker/1", /*failed=*/true, "no data"));
  const AgentEvent news = Next(watch);
  EXPECT_EQ(news.kind, AgentEvent::Kind::kJobState);
  EXPECT_EQ(news.epoch, 7);
  EXPECT_EQ(news.state.reason, "worker/1: no data");
  watch.Unwatch(/*failed=*/true, "over");
}

TEST(RoundMonitorTest, MembersThatNobodyWatchesAnyMoreLearnWhy) {
  FakeRendezvous rendezvous;
  const auto membership = std::make_shared<cluster::LocalMembership>(Clock::Real());
  RoundMonitor watch(&rendezvous, Ready);
  watch.Watch(membership, 7);
  watch.Abandon(/*failed=*/true, "the round is over");
  const AgentEvent news = Next(watch);
  EXPECT_EQ(news.kind, AgentEvent::Kind::kJobState);
  EXPECT_EQ(membership->State().reason, "tandem run: the round is over");
}

TEST(RoundMonitorTest, TheMembersOfARoundAreLookedForUntilTheirStoreAnswers) {
  FakeRendezvous rendezvous;
  const auto membership = std::make_shared<cluster::LocalMembership>(Clock::Real());
  TANDEM_ASSERT_OK(membership->Heartbeat("ps/0", absl::Seconds(9), /*leaving=*/false));
  std::atomic<int> calls = 0;
  RoundMonitor watch(&rendezvous, Ready,
                     [&](const Round& round) -> absl::StatusOr<std::shared_ptr<cluster::Membership>> {
                       if (++calls < 3) return absl::UnavailableError("etcd is away");
                       if (round.epoch == 1) return membership;
                       return absl::PermissionDeniedError("the user may not read there");
                     });
  watch.Join({.id = "n"});
  AgentEvent news = Next(watch);
  TANDEM_ASSERT_OK(news.status);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(news.membership, membership);
  watch.Look(news.membership, 1);
  news = Next(watch);
  EXPECT_EQ(news.kind, AgentEvent::Kind::kMembers);
  ASSERT_EQ(news.members.size(), 1u);
  EXPECT_EQ(news.members[0].name, "ps/0");
  watch.Tell([](Rendezvous& to) { return to.RequestRestart(1, "over", 1); });
  EXPECT_EQ(Next(watch).kind, AgentEvent::Kind::kRoundOver);
  watch.Join({.id = "n"});
  EXPECT_THAT(Next(watch).status, StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST(RoundMonitorTest, AMembershipThatDoesNotAnswerDoesNotHoldUpTheLauncher) {
  // As one in etcd does while etcd stands still.
  class Stuck final : public cluster::Membership {
   public:
    uint64_t incarnation() const override { return 1; }
    absl::StatusOr<cluster::JoinResult> Join(absl::string_view, const cluster::MemberProcess&, int64_t,
                                             int64_t) override {
      return cluster::JoinResult();
    }
    absl::Status EndLife(absl::string_view, const cluster::MemberProcess&) override { return {}; }
    absl::Status AdmitLife(absl::string_view, int64_t) override { return {}; }
    absl::StatusOr<cluster::JobState> Heartbeat(absl::string_view, absl::Duration, bool,
                                                cluster::MemberReport, int64_t) override {
      return cluster::JobState();
    }
    void AllowRestart(absl::string_view) override {}
    void Tick(absl::Duration) override {}
    absl::Status End(absl::string_view, bool, absl::string_view) override {
      answers.WaitForNotification();
      return {};
    }
    void Abandon(absl::string_view, bool, absl::string_view) override {}
    cluster::JobState WaitUntilEnded(absl::Time) override {
      answers.WaitForNotification();
      return {};
    }
    absl::StatusOr<cluster::MembershipView> Look() override { return cluster::MembershipView(); }
    absl::Notification answers;
  };
  FakeRendezvous rendezvous;
  const auto stuck = std::make_shared<Stuck>();
  const auto next = std::make_shared<cluster::LocalMembership>(Clock::Real());
  RoundMonitor watch(&rendezvous, Ready);
  watch.Watch(stuck, 1);
  watch.Unwatch(/*failed=*/true, "over");  // returns although nothing answers
  watch.Watch(next, 2);
  TANDEM_EXPECT_OK(next->End("worker/1", /*failed=*/true, "no data"));
  EXPECT_EQ(Next(watch).epoch, 2);
  stuck->answers.Notify();
}

}  // namespace
}  // namespace tandem::launcher
