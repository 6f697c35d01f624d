// SPDX-License-Identifier: Apache-2.0
#include "ps/client/bytes_in_flight.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);

TEST(BytesInFlightTest, WhatIsTakenIsHeldUntilItsShareGoes) {
  BytesInFlight bytes(100);
  {
    auto first = bytes.Take(60, absl::ZeroDuration());
    TANDEM_ASSERT_OK(first);
    BytesInFlight::Share moved = *std::move(first);
    TANDEM_ASSERT_OK_AND_ASSIGN(auto second, bytes.Take(40, absl::ZeroDuration()));
    EXPECT_EQ(bytes.held(), 100u);
    BytesInFlight::Share away = std::move(moved);
    EXPECT_EQ(bytes.held(), 100u);
  }
  EXPECT_EQ(bytes.held(), 0u);
}

TEST(BytesInFlightTest, WhatDoesNotFitInTimeIsRefusedWithTheFigures) {
  BytesInFlight bytes(100);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto held, bytes.Take(90, absl::ZeroDuration()));
  for (const absl::Duration timeout : {absl::ZeroDuration(), absl::Milliseconds(2)}) {
    EXPECT_THAT(bytes.Take(11, timeout), StatusIs(absl::StatusCode::kResourceExhausted,
                                                  HasSubstr("hold 90 bytes and may hold 100; 11 more")));
  }
  EXPECT_EQ(bytes.held(), 90u);
  TANDEM_EXPECT_OK(bytes.Take(10, absl::ZeroDuration()));
}

TEST(BytesInFlightTest, ACallLargerThanTheLimitGoesAlone) {
  BytesInFlight bytes(100);
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto large, bytes.Take(1000, absl::ZeroDuration()));
    EXPECT_THAT(bytes.Take(1, absl::ZeroDuration()), StatusIs(absl::StatusCode::kResourceExhausted));
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(auto small, bytes.Take(1, absl::ZeroDuration()));
  EXPECT_THAT(bytes.Take(1000, absl::ZeroDuration()), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(BytesInFlightTest, AWaitingCallGoesOnceThereIsRoom) {
  BytesInFlight bytes(100);
  auto held = bytes.Take(100, absl::ZeroDuration());
  TANDEM_ASSERT_OK(held);
  absl::Notification taken;
  std::thread waiter([&] {
    TANDEM_EXPECT_OK(bytes.Take(50, kLong));
    taken.Notify();
  });
  EXPECT_FALSE(taken.HasBeenNotified());
  { BytesInFlight::Share gone = *std::move(held); }
  EXPECT_TRUE(taken.WaitForNotificationWithTimeout(kLong));
  waiter.join();
}

TEST(BytesInFlightTest, AWaitThatShallNotGoOnIsCancelled) {
  BytesInFlight bytes(100);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto held, bytes.Take(90, absl::ZeroDuration()));
  int asked = 0;
  const auto twice = [&] {
    EXPECT_EQ(bytes.held(), 90u);  // asked without the lock
    return ++asked < 2;
  };
  EXPECT_THAT(bytes.Take(11, kLong, twice),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("nothing was sent")));
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(bytes.held(), 90u);
  EXPECT_THAT(bytes.Take(11, absl::Milliseconds(1), [] { return true; }),
              StatusIs(absl::StatusCode::kResourceExhausted));
  TANDEM_EXPECT_OK(bytes.Take(10, kLong, [] { return false; }));
}

TEST(BytesInFlightTest, ManyThreadsNeverHoldMoreThanTheLimitTogether) {
  constexpr uint64_t kLimit = 1000;
  BytesInFlight bytes(kLimit);
  std::atomic<uint64_t> held{0}, most{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      CounterRandom random(1, t);
      for (int i = 0; i < 2000; ++i) {
        const uint64_t want = 1 + random.Below(kLimit);
        auto share = bytes.Take(want, kLong);
        TANDEM_ASSERT_OK(share);
        const uint64_t now = held += want;
        uint64_t seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        held -= want;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, kLimit);
  EXPECT_EQ(bytes.held(), 0u);
}

}  // namespace
}  // namespace tandem::ps
