// SPDX-License-Identifier: Apache-2.0
#include "rpc/deferred_calls.h"

#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::rpc {
namespace {

using ::testing::ElementsAre;

TEST(DeferredCalls, GivesUpInOrderOfDeadlinesAndOnlyWhatIsStillParked) {
  SimulatedClock clock;
  rpc::DeferredCalls deferred(&clock);
  absl::Mutex mutex;
  std::vector<int> given_up;
  absl::Notification last;
  const auto park = [&](int seconds) {
    const uint64_t ticket = deferred.NewTicket();
    deferred.Defer(ticket, clock.Now() + absl::Seconds(seconds),
                   [&, seconds](rpc::DeferredCalls::Reason reason) {
                     EXPECT_EQ(reason, rpc::DeferredCalls::Reason::kDeadline);
                     {
                       absl::MutexLock lock(&mutex);
                       given_up.push_back(seconds);
                     }
                     if (seconds == 5) last.Notify();
                   });
    return ticket;
  };
  park(5);
  const uint64_t three = park(3);
  park(1);
  const uint64_t hundred = park(100);
  EXPECT_TRUE(deferred.Resume(three));
  EXPECT_FALSE(deferred.Resume(three));
  clock.Advance(absl::Seconds(5));
  ASSERT_TRUE(last.WaitForNotificationWithTimeout(absl::Minutes(1)));
  EXPECT_TRUE(deferred.Resume(hundred));
  EXPECT_EQ(deferred.size(), 0);
  absl::MutexLock lock(&mutex);
  EXPECT_THAT(given_up, ElementsAre(1, 5));
}

TEST(DeferredCalls, StopGivesUpOnWhatIsParkedAndWhatComes) {
  rpc::DeferredCalls deferred(Clock::Real());
  int stopped = 0;
  const auto park = [&] {
    deferred.Defer(deferred.NewTicket(), absl::InfiniteFuture(), [&](rpc::DeferredCalls::Reason reason) {
      stopped += reason == rpc::DeferredCalls::Reason::kStopped;
    });
  };
  park();
  EXPECT_EQ(stopped, 0);
  deferred.Stop();
  EXPECT_EQ(stopped, 1);
  park();
  EXPECT_EQ(stopped, 2);
}

TEST(DeferredCalls, ExpireAllGivesUpOnWhatIsParkedAndLaterCallsWaitAsBefore) {
  SimulatedClock clock;
  rpc::DeferredCalls deferred(&clock);
  int stopped = 0;
  absl::Notification expired;
  const auto park = [&] {
    const uint64_t ticket = deferred.NewTicket();
    deferred.Defer(ticket, clock.Now() + absl::Seconds(1), [&](rpc::DeferredCalls::Reason reason) {
      if (reason == rpc::DeferredCalls::Reason::kDeadline) return expired.Notify();
      ++stopped;
    });
    return ticket;
  };
  const uint64_t first = park(), second = park();
  EXPECT_TRUE(deferred.Resume(first));
  deferred.ExpireAll();
  EXPECT_EQ(stopped, 1);
  EXPECT_FALSE(deferred.Resume(second));
  park();
  EXPECT_EQ(deferred.size(), 1u);
  clock.Advance(absl::Seconds(1));
  ASSERT_TRUE(expired.WaitForNotificationWithTimeout(absl::Minutes(1)));
  EXPECT_EQ(stopped, 1);
}

}  // namespace
}  // namespace tandem::rpc
